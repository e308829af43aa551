package transport

import (
	"encoding/binary"
	"slices"
	"testing"
)

// FuzzFrames: the frames that are found do not depend on how the bytes arrive, and each is as long as its header says.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x00\x01\x00\x00\x00\x03x"), uint8(1))
	f.Add([]byte("\x00\x00\x00\x03\x00\x80\x00\x00\x01\x00\x00\x02\x01\x05\x00\x00\x00\x05yz"), uint8(4))
	f.Fuzz(func(t *testing.T, data []byte, step uint8) {
		found := func(step int) (all [][9]byte) {
			r := frames{skip: 1}
			for part := range slices.Chunk(data, step) {
				r.feed(part, func(kind, flags byte, stream uint32, length int) {
					var h [9]byte
					binary.BigEndian.PutUint32(h[:], uint32(length)<<8|uint32(kind))
					h[4] = flags
					binary.BigEndian.PutUint32(h[5:], stream)
					all = append(all, h)
				})
			}
			return all
		}
		whole := found(max(len(data), 1))
		if parts := found(int(step) + 1); !slices.Equal(whole, parts) {
			t.Errorf("%x as a whole, %x in parts", whole, parts)
		}
		at := 1
		for _, h := range whole {
			if at+9 > len(data) {
				t.Fatalf("a frame at %d of %d bytes", at, len(data))
			}
			want := [9]byte(data[at:])
			want[5] &= 0x7f
			if h != want {
				t.Fatalf("%x at %d, want %x", h, at, want)
			}
			at += 9 + int(binary.BigEndian.Uint32(h[:])>>8)
		}
	})
}
