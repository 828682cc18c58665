-- expect: raised
-- Opening a file.
return io.open("/etc/passwd")
