// Package storage is the SDK's kind "storage": CSI volumes. An author
// implements Storage, and the optional interfaces for what else the plugin can
// do, and serves it with sdk.Main(storage.Plugin(...)). The protocol below is
// pannier.plugin.storage.v1.
//
// It imports neither host nor cluster. A plugin keeps no state: each call
// names its driver and carries all that it needs.
package storage
