// Package nodedirs has the sources of the plugin node-dirs, which `pannier agent plugin new -lang node` begins with.
package nodedirs

import "embed"

// Files are the sources. ProtoDir is where they look for the protobuf files, and Name the plugin's name in them.
//
//go:embed *.js package.json package-lock.json
var Files embed.FS

// These occur in Files.
const (
	Name     = "node-dirs"
	ProtoDir = "../../../sdk/proto"
)
