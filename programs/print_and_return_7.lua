print("seven follows")
return 7
