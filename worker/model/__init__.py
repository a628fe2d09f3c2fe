"""One model process: started, confined, asked, measured, ended."""
