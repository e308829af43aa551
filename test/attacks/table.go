package main

import "slices"

// all returns the table, in the order of the documentation.
func all() []attack {
	return slices.Concat(
		ofStrangers,
		floods,
		byGossip,
		ofNodes,
		ofTokens,
		ofAccess,
		onPages,
		ofWorkloads,
		onMounts,
		ofPlugins,
		ofPluginFiles,
		onTheHost,
	)
}
