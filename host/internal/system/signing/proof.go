package signing

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/internal/atomicfile"
)

// The ends of the names of the files beside a binary that prove where it comes from.
const (
	SignatureEnd = ".minisig"    // the signature
	SumsEnd      = ".SHA256SUMS" // what is signed, if that is not the binary itself
)

// IsProof reports whether a file's name belongs to a part of a proof rather than to a binary.
func IsProof(file string) bool {
	return strings.HasSuffix(file, SignatureEnd) || strings.HasSuffix(file, SumsEnd)
}

// The sizes that are read at most, in bytes.
const (
	MaxSignature = 8 << 10
	MaxSums      = 1 << 20
)

// Proof is what lies beside a binary: a signature of it, or of sums that have its checksum.
type Proof struct {
	Signature []byte
	Sums      []byte // a SHA256SUMS; nil: the binary itself is signed
}

// Equal reports whether two proofs are the same bytes.
func (p Proof) Equal(o Proof) bool {
	return bytes.Equal(p.Signature, o.Signature) && bytes.Equal(p.Sums, o.Sums)
}

// Beside reads the proof beside a binary. Without one it is empty.
func Beside(path string) (p Proof, err error) {
	if p.Signature, err = read(path+SignatureEnd, MaxSignature); err != nil {
		return Proof{}, err
	}
	if p.Sums, err = read(path+SumsEnd, MaxSums); err != nil {
		return Proof{}, err
	}
	return p, nil
}

// read returns the content of a file, or nil if there is none.
func read(path string, most int64) ([]byte, error) {
	// O_NONBLOCK: a named pipe would be waited for.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the signature: %w", err)
	}
	defer f.Close()
	data, err := ReadAll(f, most)
	if err != nil {
		return nil, fmt.Errorf("read the signature: %s: %w", path, err)
	}
	return data, nil
}

// ReadAll reads up to most bytes. More are an error.
func ReadAll(r io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("it is larger than %d bytes", most)
	}
	return data, err
}

// Write puts the proof beside a binary, so that Beside finds it. What the proof lacks is removed.
func (p Proof) Write(path string) error {
	return errors.Join(write(path+SumsEnd, p.Sums), write(path+SignatureEnd, p.Signature))
}

func write(path string, data []byte) error {
	if len(data) > 0 {
		return atomicfile.WriteFile(path, data)
	}
	return Remove(path)
}

// Remove removes a file, if it exists.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Sum is a line of a SHA256SUMS.
type Sum struct{ SHA256, File string }

// ParseSums reads what sha256sum(1) writes: a checksum of 64 hex digits and a file's name each line.
func ParseSums(text []byte) (sums []Sum, err error) {
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		sum, file, ok := strings.Cut(line, " ")
		// The second character reports whether it was read as text or, by *, in binary mode.
		_, notHex := hex.DecodeString(sum)
		if notHex != nil || !ok || len(sum) != 64 || len(file) < 2 || file[0] != ' ' && file[0] != '*' {
			return nil, fmt.Errorf("SHA256SUMS: %.100q is not a line of sha256sum", line)
		}
		sums = append(sums, Sum{SHA256: strings.ToLower(sum), File: file[1:]})
	}
	return sums, nil
}

// SumOf returns the checksum of a file; an empty text if the sums do not name it.
func SumOf(sums []Sum, file string) string {
	n := slices.IndexFunc(sums, func(s Sum) bool { return s.File == file })
	if n < 0 {
		return ""
	}
	return sums[n].SHA256
}
