// Package wire is what a host and a plugin must agree on before the first call:
// the handshake, the version of the wire, the names in the environment, and TLS.
//
// Plugin authors need nothing of it: sdk.Main does their side. A host imports
// it to start plugins and to connect to them again.
//
// Three things must stay true. The key that the host proves itself with never
// leaves the host's data directory: a plugin can therefore not pass for the host
// towards another plugin. A plugin's certificate names one generation of that
// plugin, so a host that connects again knows which process it talks to. And no
// key is passed in an environment or an argument, only the path of a file.
package wire
