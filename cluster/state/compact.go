package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pannier/pannier/cluster/claim"
)

// compactVersion is the first byte of a record in the compact encoding. JSON begins with '{'.
//
// Records of which there are many, volumes, claims, workloads and outcomes of commands, are stored compactly, because
// Badger's work grows with their size. Snapshots have them as JSON, so that earlier programs read them. A ledger that
// an earlier program wrote has them as JSON until they change.
const compactVersion = 2

// encodeCompactly encodes a record as protobuf fields in ascending order. ok is false for kinds that are JSON.
func encodeCompactly(record any) (data []byte, ok bool, err error) {
	f := fields{data: make([]byte, 1, 192)}
	f.data[0] = compactVersion
	if !f.record(record) {
		return nil, false, nil
	}
	return f.data, true, f.err
}

func decodeCompactly(data []byte, record any) error {
	f := fields{data: data[1:], decoding: true}
	if !f.record(record) {
		return fmt.Errorf("%w: a compact %T", ErrNewerRecord, record)
	}
	if f.err != nil {
		return fmt.Errorf("read a record: %w", f.err)
	}
	return nil
}

// fields encodes or decodes one message. Each of its methods is for one field, and skips it if it has its zero value;
// they are called in the order of the fields' numbers, which never change.
type fields struct {
	data     []byte // encoded so far, or to be decoded
	decoding bool
	err      error
}

// record is the list of the fields of a record.
func (f *fields) record(r any) bool {
	switch r := r.(type) {
	case *claim.Volume:
		f.volume(r)
	case *claim.Claim:
		f.claim(r)
	case *claim.Workload:
		f.workload(r)
	case *kept:
		f.kept(r)
	default:
		return false
	}
	return true
}

func (f *fields) volume(v *claim.Volume) {
	f.text(1, &v.Namespace)
	f.text(2, &v.ID)
	f.text(3, &v.Name)
	f.text(4, &v.PluginID)
	f.text(5, &v.ExternalID)
	f.size(6, &v.CapacityMin)
	f.size(7, &v.CapacityMax)
	f.size(8, &v.Capacity)
	f.flag(9, &v.Grown)
	f.text(10, &v.CloneID)
	f.text(11, &v.SnapshotID)
	each(f, 12, &v.Capabilities, func(f *fields, c *claim.Capability) {
		word(f, 1, &c.AccessMode, accessModes)
		word(f, 2, &c.AttachmentMode, attachmentModes)
	})
	f.text(13, &v.MountOptions.FSType)
	each(f, 14, &v.MountOptions.Flags, (*fields).item)
	f.text(15, &v.MountOptions.Group)
	each(f, 16, &v.Topology.Required, (*fields).topology)
	each(f, 17, &v.Topology.Preferred, (*fields).topology)
	each(f, 18, &v.Topologies, (*fields).topology)
	f.texts(19, &v.Parameters)
	f.texts(20, &v.MutableParameters)
	f.texts(21, &v.Context)
	f.bytes(22, &v.SealedSecrets)
	f.text(23, &v.SecretsKey)
	word(f, 24, &v.AccessMode, accessModes)
	word(f, 25, &v.AttachmentMode, attachmentModes)
	f.index(26, &v.CreateIndex)
	f.index(27, &v.ModifyIndex)
	f.time(28, &v.CreatedAt)
	f.time(29, &v.ModifiedAt)
}

func (f *fields) claim(c *claim.Claim) {
	f.text(1, &c.Volume.Namespace)
	f.text(2, &c.Volume.ID)
	f.text(3, &c.Workload.Namespace)
	f.text(4, &c.Workload.ID)
	f.text(5, &c.Node)
	f.text(6, &c.DriverNodeID)
	word(f, 7, &c.Mode, modes)
	word(f, 8, &c.AccessMode, accessModes)
	word(f, 9, &c.AttachmentMode, attachmentModes)
	word(f, 10, &c.State, states)
	f.index(11, &c.Index)
	f.time(12, &c.TakenAt)
	f.time(13, &c.ModifiedAt)
	f.text(14, &c.ForcedBy)
	f.time(15, &c.ForcedAt)
}

func (f *fields) workload(w *claim.Workload) {
	f.ref(1, &w.Ref)
	f.text(2, &w.Node)
	word(f, 3, &w.Status, statuses)
	each(f, 4, &w.After, func(f *fields, r *claim.WorkloadRef) { f.ref(1, r) })
	f.time(5, &w.CreatedAt)
	f.time(6, &w.EndedAt)
	f.index(7, &w.CreateIndex)
	f.index(8, &w.ModifyIndex)
	f.text(9, &w.RunID)
	f.bytes(10, &w.StartedBy)
	f.text(11, &w.LastEndedRunID)
}

func (f *fields) kept(k *kept) {
	f.text(1, &k.Key)
	f.bytes(2, &k.Command)
	f.time(3, &k.At)
	f.index(4, &k.Index)
	if string(k.Outcome) == "null" { // how JSON has none
		k.Outcome = nil
	}
	f.bytes(5, (*[]byte)(&k.Outcome))
}

// ref is a message of its own.
func (f *fields) ref(n protowire.Number, r *claim.WorkloadRef) {
	f.message(n, func(f *fields) {
		f.text(1, &r.Namespace)
		f.text(2, &r.ID)
	})
}

func (f *fields) topology(t *claim.Topology) { f.texts(1, &t.Segments) }

// item is a text in a list.
func (f *fields) item(s *string) { f.text(1, s) }

// The words that are stored as numbers, by position from 1. Words may be added at the end only; others are stored as
// texts.
var (
	accessModes = []claim.AccessMode{
		claim.SingleNodeReaderOnly, claim.SingleNodeWriter, claim.SingleNodeSingleWriter, claim.SingleNodeMultiWriter,
		claim.MultiNodeReaderOnly, claim.MultiNodeSingleWriter, claim.MultiNodeMultiWriter,
	}
	attachmentModes = []claim.AttachmentMode{claim.FileSystem, claim.BlockDevice}
	modes           = []claim.Mode{claim.Read, claim.Write, claim.GC}
	states          = []claim.State{
		claim.Taken, claim.Unpublishing, claim.NodeDetached, claim.Freed,
	}
	statuses = []claim.WorkloadStatus{claim.Waiting, claim.Running, claim.Ended}
)

func word[S ~string](f *fields, n protowire.Number, v *S, known []S) {
	if !f.decoding {
		if at := slices.Index(known, *v); at >= 0 {
			f.putNumber(n, uint64(at+1))
		} else {
			text := string(*v)
			f.text(n, &text)
		}
		return
	}
	switch kind, raw, number := f.take(n); {
	case kind == protowire.BytesType:
		*v = S(raw)
	case number > uint64(len(known)):
		f.err = fmt.Errorf("%w: the word %d in field %d", ErrNewerRecord, number, n)
	case number > 0:
		*v = known[number-1]
	}
}

func (f *fields) text(n protowire.Number, v *string) {
	if f.decoding {
		_, raw, _ := f.take(n)
		*v = string(raw)
	} else if *v != "" {
		f.data = protowire.AppendString(protowire.AppendTag(f.data, n, protowire.BytesType), *v)
	}
}

func (f *fields) bytes(n protowire.Number, v *[]byte) {
	if f.decoding {
		_, raw, _ := f.take(n)
		*v = slices.Clone(raw)
	} else if len(*v) > 0 {
		f.putBytes(n, *v)
	}
}

func (f *fields) index(n protowire.Number, v *uint64) {
	if f.decoding {
		_, _, *v = f.take(n)
	} else if *v != 0 {
		f.putNumber(n, *v)
	}
}

func (f *fields) size(n protowire.Number, v *int64) {
	if f.decoding {
		_, _, number := f.take(n)
		*v = protowire.DecodeZigZag(number)
	} else if *v != 0 {
		f.putNumber(n, protowire.EncodeZigZag(*v))
	}
}

func (f *fields) flag(n protowire.Number, v *bool) {
	if f.decoding {
		_, _, number := f.take(n)
		*v = number != 0
	} else if *v {
		f.putNumber(n, 1)
	}
}

func (f *fields) time(n protowire.Number, v *time.Time) {
	if f.decoding {
		if _, raw, _ := f.take(n); raw != nil && f.err == nil {
			f.err = v.UnmarshalBinary(raw)
		}
		return
	}
	if v.IsZero() {
		return
	}
	var buffer [16]byte
	raw, err := v.UTC().AppendBinary(buffer[:0])
	f.err = cmp.Or(f.err, err)
	f.putBytes(n, raw)
}

func (f *fields) texts(n protowire.Number, v *map[string]string) {
	var pairs [][2]string
	for _, key := range slices.Sorted(maps.Keys(*v)) {
		pairs = append(pairs, [2]string{key, (*v)[key]})
	}
	each(f, n, &pairs, func(f *fields, pair *[2]string) {
		f.text(1, &pair[0])
		f.text(2, &pair[1])
	})
	if f.decoding && len(pairs) > 0 {
		*v = make(map[string]string, len(pairs))
		for _, pair := range pairs {
			(*v)[pair[0]] = pair[1]
		}
	}
}

// each is a list of messages.
func each[T any](f *fields, n protowire.Number, list *[]T, one func(*fields, *T)) {
	if !f.decoding {
		for i := range *list {
			f.message(n, func(f *fields) { one(f, &(*list)[i]) })
		}
		return
	}
	for f.has(n) {
		var item T
		f.message(n, func(f *fields) { one(f, &item) })
		*list = append(*list, item)
	}
}

func (f *fields) message(n protowire.Number, list func(*fields)) {
	if !f.decoding {
		var buffer [128]byte
		inner := fields{data: buffer[:0]}
		list(&inner)
		f.putBytes(n, inner.data)
		f.err = cmp.Or(f.err, inner.err)
		return
	}
	_, raw, _ := f.take(n)
	inner := fields{data: raw, decoding: true}
	list(&inner)
	f.err = cmp.Or(f.err, inner.err)
}

func (f *fields) putBytes(n protowire.Number, raw []byte) {
	f.data = protowire.AppendBytes(protowire.AppendTag(f.data, n, protowire.BytesType), raw)
}

func (f *fields) putNumber(n protowire.Number, number uint64) {
	f.data = protowire.AppendVarint(protowire.AppendTag(f.data, n, protowire.VarintType), number)
}

// has skips fields with lower numbers, which this program does not know, and reports whether the next one is n.
func (f *fields) has(n protowire.Number) bool {
	for f.err == nil && len(f.data) > 0 {
		number, kind, size := protowire.ConsumeTag(f.data)
		if size < 0 {
			f.err = protowire.ParseError(size)
			return false
		}
		if number >= n {
			return number == n
		}
		skipped := protowire.ConsumeFieldValue(number, kind, f.data[size:])
		if skipped < 0 {
			f.err = protowire.ParseError(skipped)
			return false
		}
		f.data = f.data[size+skipped:]
	}
	return false
}

// take reads a field: its bytes, which are part of the record, or its number. Both are zero if it is missing.
func (f *fields) take(n protowire.Number) (kind protowire.Type, raw []byte, number uint64) {
	if !f.has(n) {
		return 0, nil, 0
	}
	_, kind, size := protowire.ConsumeTag(f.data)
	f.data = f.data[size:]
	switch kind {
	case protowire.BytesType:
		raw, size = protowire.ConsumeBytes(f.data)
	case protowire.VarintType:
		number, size = protowire.ConsumeVarint(f.data)
	default:
		f.err = fmt.Errorf("field %d has the type %d", n, kind)
		return 0, nil, 0
	}
	if size < 0 {
		f.err = protowire.ParseError(size)
		return 0, nil, 0
	}
	f.data = f.data[size:]
	return kind, raw, number
}
