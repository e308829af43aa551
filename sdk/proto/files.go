// Package proto has the protobuf files of the plugin protocols, for authors in other languages.
package proto

import "embed"

// Files are the files below their import paths, such as pannier/plugin/v1/plugin.proto. They are in descriptors.binpb
// too, as a FileDescriptorSet, with what they import: for languages that make their messages of it at run time.
//
//go:embed pannier/plugin/*/*.proto pannier/plugin/*/*/*.proto descriptors.binpb
var Files embed.FS
