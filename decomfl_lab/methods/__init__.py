"""What a method is: who trains, what is sent, and what becomes of it. One file each."""
