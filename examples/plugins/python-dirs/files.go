// Package pythondirs has the sources of the plugin python-dirs, which `pannier agent plugin new -lang python` begins with.
package pythondirs

import "embed"

// Files are the sources. The built plugin has descriptors.binpb of sdk/proto beside them. Name is the plugin's name in
// them.
//
//go:embed *.py requirements.txt
var Files embed.FS

// Name occurs in Files.
const Name = "python-dirs"
