// Package newplugin writes the module of a new plugin, which builds, passes its tests and runs under an agent
// unchanged.
//
// templates/ has the files of every kind, and plugin.go and plugin_test.go of each kind. A kind is a folder with
// these two.
package newplugin
