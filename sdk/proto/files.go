// Package proto has the protobuf files of the plugin protocols, for authors in other languages.
package proto

import "embed"

// Files are the files below their import paths, such as pannier/plugin/v1/plugin.proto.
//
//go:embed pannier/plugin/*/*.proto pannier/plugin/*/*/*.proto
var Files embed.FS
