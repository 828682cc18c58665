return agent:delegate("digger"):dig()
