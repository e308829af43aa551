package main

// ofPlugins are attacks of plugins, drivers, and those who can write their files.
var ofPlugins = []attack{
	{
		who: "a user who can write a plugin's file or its directory", tries: "have the agent run it as root",
		stops: "owner and mode of the file and of all directories above it are checked; `checksum`",
		pkg:   "./host/internal/pluginhost/supervisor", run: "^TestVerifyRefuses$",
	},
}
