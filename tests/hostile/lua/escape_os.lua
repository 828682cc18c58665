-- expect: raised
-- Running a command.
return os.execute("id")
