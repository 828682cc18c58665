return io.open("/etc/hostname"):read("a")
