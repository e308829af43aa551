package storage

import storagev1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/storage/v1"

// names puts an enum of the protocol beside its Go strings. A value that only
// one side knows becomes the unspecified one, "" in Go: both sides refuse it.
type names[S ~string, E ~int32] map[S]E

func (n names[S, E]) to(s S) E { return n[s] }

func (n names[S, E]) from(e E) S {
	for s, v := range n {
		if v == e {
			return s
		}
	}
	return ""
}

var accessModes = names[AccessMode, storagev1.AccessMode]{
	SingleNodeReaderOnly:   storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_READER_ONLY,
	SingleNodeWriter:       storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_WRITER,
	SingleNodeSingleWriter: storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_SINGLE_WRITER,
	SingleNodeMultiWriter:  storagev1.AccessMode_ACCESS_MODE_SINGLE_NODE_MULTI_WRITER,
	MultiNodeReaderOnly:    storagev1.AccessMode_ACCESS_MODE_MULTI_NODE_READER_ONLY,
	MultiNodeSingleWriter:  storagev1.AccessMode_ACCESS_MODE_MULTI_NODE_SINGLE_WRITER,
	MultiNodeMultiWriter:   storagev1.AccessMode_ACCESS_MODE_MULTI_NODE_MULTI_WRITER,
}

var attachmentModes = names[AttachmentMode, storagev1.AttachmentMode]{
	FileSystem:  storagev1.AttachmentMode_ATTACHMENT_MODE_FILE_SYSTEM,
	BlockDevice: storagev1.AttachmentMode_ATTACHMENT_MODE_BLOCK_DEVICE,
}

var units = names[Unit, storagev1.Usage_Unit]{
	Bytes:  storagev1.Usage_UNIT_BYTES,
	Inodes: storagev1.Usage_UNIT_INODES,
}
