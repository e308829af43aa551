package driver

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pannier/pannier/internal/printable"
)

// The bounds of what a driver answers, in bytes (CSI spec, "Size Limits").
const (
	// maxText bounds a driver's words in an error or a report. The spec has no bound for them.
	maxText = 4 << 10
	// maxMap bounds the keys and values of a map together, such as volume_context and publish_context.
	maxMap = 4 << 10
	// maxID bounds each other text, such as the ids of volumes, snapshots and nodes. The spec allows 128 bytes, and 256
	// for node_id; ids of Azure's drivers are paths of resources with about 300, those of csi-driver-nfs contain the
	// path of a share.
	maxID = 1 << 10
	// maxTopologies bounds the topologies of a volume together. The spec bounds each one, and not their number.
	maxTopologies = 16 << 10
)

// words are the fields of answers that are for people.
var words = []string{"message", "reason", "name", "vendor_version"}

// bound shortens the words of an answer, without secrets, and refuses all that is too large to be kept.
func bound(answer protoreflect.Message, hide Redactor) (err error) {
	answer.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name, limit, size := string(f.Name()), maxID, 0
		switch {
		case f.IsMap(): // of texts
			limit = maxMap
			v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				size += len(key.String()) + len(value.String())
				return true
			})
		case f.IsList() && f.Message() != nil:
			limit = maxTopologies
			for i := 0; i < v.List().Len() && err == nil; i++ {
				one := v.List().Get(i).Message()
				if err = bound(one, hide); one.Descriptor().Name() == "Topology" {
					size += proto.Size(one.Interface())
				}
			}
		case f.IsList() && f.Kind() == protoreflect.StringKind:
			for i := range v.List().Len() {
				size = max(size, len(v.List().Get(i).String()))
			}
		case f.IsList():
		case f.Message() != nil:
			err = bound(v.Message(), hide)
		case f.Kind() != protoreflect.StringKind:
		case slices.Contains(words, name):
			answer.Set(f, protoreflect.ValueOfString(Words(v.String(), hide)))
		default:
			size = len(v.String())
		}
		if err == nil && size > limit {
			err = status.Errorf(codes.Internal, "the driver answered with a %s of %d bytes, at most %d are allowed "+
				"(CSI spec, \"Size Limits\")%s", name, size, limit, made(answer))
		}
		return err == nil
	})
	return err
}

// endList takes the token of the next page out of an answer if the driver was asked by it for this page: whoever reads
// the whole list would read for ever.
func endList(req any, answer protoreflect.Message) {
	next := answer.Descriptor().Fields().ByName("next_token")
	asked, ok := req.(interface{ GetStartingToken() string })
	if ok && next != nil && answer.Get(next).String() == asked.GetStartingToken() {
		answer.Clear(next)
	}
}

// made names the object that a driver has made, if a refused answer names it.
func made(answer protoreflect.Message) string {
	if v, ok := answer.Interface().(interface{ GetVolumeId() string }); ok && len(v.GetVolumeId()) <= maxID {
		return fmt.Sprintf(": it is of the volume with the id %q", v.GetVolumeId())
	}
	return ""
}

// Words returns what a driver says, without secrets and colours, as text of at most 4 KiB.
func Words(text string, hide Redactor) string {
	text = strings.ToValidUTF8(hide.Text(printable.Unstyled(text)), "?")
	if len(text) <= maxText {
		return text
	}
	cut := text[:maxText]
	for len(cut) > 0 && !utf8.RuneStart(text[len(cut)]) {
		cut = cut[:len(cut)-1]
	}
	return fmt.Sprintf("%s... (%d bytes more)", strings.TrimSpace(cut), len(text)-len(cut))
}

// codec reads answers whose texts are not UTF-8, which protobuf refuses: old drivers pass on what tools print.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protocodec.Name)} }

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, into any) error {
	err := c.CodecV2.Unmarshal(data, into)
	if m, ok := into.(proto.Message); ok && err != nil {
		raw := data.Materialize()
		makeValid(raw, m.ProtoReflect().Descriptor())
		if proto.Unmarshal(raw, m) == nil {
			return nil
		}
	}
	return err
}

// makeValid replaces each byte of an encoded message's texts that is not part of a character by a question mark.
func makeValid(raw []byte, of protoreflect.MessageDescriptor) {
	for len(raw) > 0 {
		number, kind, head := protowire.ConsumeTag(raw)
		if head < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, raw[head:])
		if size < 0 {
			return
		}
		field := of.Fields().ByNumber(number)
		if value, n := protowire.ConsumeBytes(raw[head:]); kind == protowire.BytesType && n > 0 && field != nil {
			switch {
			case field.Message() != nil:
				makeValid(value, field.Message())
			case field.Kind() == protoreflect.StringKind:
				for i := 0; i < len(value); {
					r, width := utf8.DecodeRune(value[i:])
					if r == utf8.RuneError && width == 1 {
						value[i] = '?'
					}
					i += width
				}
			}
		}
		raw = raw[head+size:]
	}
}
