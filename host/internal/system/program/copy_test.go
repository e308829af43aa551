package program

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// What is copied is hashed, whatever its size and however it is read.
func TestCopyAndHash(t *testing.T) {
	for _, size := range []int{0, 1, part - 1, part, part + 1, 7*part + 3} {
		data := make([]byte, size)
		for n := range data {
			data[n] = byte(n % 251)
		}
		want := sha256.Sum256(data)
		for name, reader := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "halves": iotest.HalfReader, "end with data": iotest.DataErrReader,
		} {
			var copied bytes.Buffer
			sum, err := copyAndHash(&copied, reader(bytes.NewReader(data)))
			if err != nil || sum != hex.EncodeToString(want[:]) || !bytes.Equal(copied.Bytes(), data) {
				t.Errorf("%d bytes, %s: %d are copied, with checksum %s, %v", size, name, copied.Len(), sum, err)
			}
		}
	}
}

// A copy that could not be read or written has no checksum.
func TestCopyFails(t *testing.T) {
	bad := errors.New("bad")
	data := bytes.NewReader(make([]byte, 3*part))
	if sum, err := copyAndHash(io.Discard, io.MultiReader(data, iotest.ErrReader(bad))); !errors.Is(err, bad) {
		t.Errorf("what cannot be read has the checksum %q, %v", sum, err)
	}
	reader, writer := io.Pipe()
	_ = reader.CloseWithError(bad)
	if sum, err := copyAndHash(writer, bytes.NewReader(make([]byte, 9*part))); !errors.Is(err, bad) {
		t.Errorf("what cannot be written has the checksum %q, %v", sum, err)
	}
}
