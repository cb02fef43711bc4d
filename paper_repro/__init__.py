"""The paper's figures and tables: settings → runs → result frame → figure → verdict on the paper's claim."""
