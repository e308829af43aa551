package driver

import (
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// logCall writes one line for an RPC: at debug what it was and how it ended, at
// trace the messages too. The driver's error text is not in it: it is returned.
func (c *Conn) logCall(info *call, method string, req, reply any, err error, took time.Duration) {
	args := []any{
		"driver", info.op.Driver, "rpc", path.Base(method), "code", status.Code(err).String(),
		"duration", took.Round(time.Microsecond).String(), "attempt", info.attempt,
	}
	if !c.log.IsTrace() {
		c.log.Debug("csi call", args...)
		return
	}
	hide := info.op.Redactor
	args = append(args, "request", hide.Text(printable(req)))
	if err == nil {
		args = append(args, "response", hide.Text(printable(reply)))
	}
	c.log.Trace("csi call", args...)
}

// printable is a CSI message as one line of JSON without its secrets: the
// fields that the spec marks csi_secret, and mount flags, which the spec says
// may be sensitive but does not mark.
func printable(msg any) string {
	m, ok := msg.(proto.Message)
	if !ok {
		return "?"
	}
	m = proto.Clone(m)
	hideMountFlags(m.ProtoReflect())
	return protosanitizer.StripSecrets(m).String()
}

func hideMountFlags(m protoreflect.Message) {
	if mount, ok := m.Interface().(*csi.VolumeCapability_MountVolume); ok {
		for i := range mount.MountFlags {
			mount.MountFlags[i] = redacted
		}
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.Message() == nil || field.IsMap(): // CSI has no map of messages
		case field.IsList():
			for i := range v.List().Len() {
				hideMountFlags(v.List().Get(i).Message())
			}
		default:
			hideMountFlags(v.Message())
		}
		return true
	})
}
