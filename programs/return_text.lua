return "two lines\nand a ünïcode “quote”"
