// Package newplugin writes the module of a new plugin: what an author starts from. It
// builds, passes its tests and comes up under an agent as it is.
//
// What it writes is in templates/: the files of every kind, and plugin.go and
// plugin_test.go of each. A kind is one that has these two.
package newplugin
