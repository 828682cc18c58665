return Agent.for_role("digger"):dig()
