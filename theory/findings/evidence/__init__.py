"""Evidence on the statements of the paper: functions that find it now, each with the statements that it speaks on."""
