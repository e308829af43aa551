// Package install fetches plugins and puts them into the plugin directory, from which an agent takes them by itself.
// It takes a file, a directory, a .tar.gz, an https address or an OCI artifact, and needs no agent.
//
// What must stay true: a binary appears in the plugin directory only whole, checked, and with its signature beside it.
// Nothing outside the staging directory is written before everything is checked, whatever names a source uses. A
// process that is killed leaves the staging directory, which the next one empties, and perhaps a signature without its
// binary. Nothing is run before its sum and its signature are checked. No secret is stored.
package install
