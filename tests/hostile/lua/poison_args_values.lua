-- expect: ok
-- Changing this call's arguments.
args[1] = "poisoned"
args.extra = "poisoned"
kwargs.extra = "poisoned"
