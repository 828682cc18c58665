return tools.launch_rocket{ target = "moon" }
