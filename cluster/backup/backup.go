// Package backup reads copies of the ledger: one line of JSON, followed by a snapshot. It imports no database, so that
// commands can check a file without a ledger.
package backup

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pannier/pannier/internal/errcode"
)

// Format is the only format so far.
const Format = "pannier-ledger-1"

// maxHeader bounds the line of JSON, in bytes.
const maxHeader = 4 << 10

// ErrBad means that the bytes are not a backup, or a damaged one.
var ErrBad = errcode.InvalidArgument.New("bad backup of the ledger")

// Backup describes a backup. Secrets in it are encrypted, as they are in the ledger.
type Backup struct {
	Format    string    `json:"format"`
	Cluster   string    `json:"cluster"` // the identity of the cluster
	Server    string    `json:"server"`  // that wrote it
	Index     uint64    `json:"index"`   // of the last entry in it
	Term      uint64    `json:"term"`
	CreatedAt time.Time `json:"created_at"`
	Size      int64     `json:"size"`   // of the snapshot, in bytes
	SHA256    string    `json:"sha256"` // of the snapshot, in hexadecimal
}

// Inspect reads a whole backup, verifies it as Restore does, and describes it.
func Inspect(r io.Reader) (Backup, error) {
	return Read(r, func(_ Backup, snapshot io.Reader) error {
		_, err := Records(snapshot, func(byte, []byte) error { return nil })
		return err
	})
}

// Read is Inspect that has read read the snapshot.
func Read(r io.Reader, read func(b Backup, snapshot io.Reader) error) (b Backup, err error) {
	in := bufio.NewReaderSize(r, maxHeader)
	line, err := in.ReadSlice('\n')
	if err == nil {
		err = json.Unmarshal(line, &b)
	}
	if err != nil {
		return b, fmt.Errorf("%w: it does not begin like a backup: %w", ErrBad, err)
	}
	if b.Format != Format || b.Size <= 0 {
		return b, fmt.Errorf("%w: it has the format %q and %d bytes, this program knows %q", ErrBad, b.Format, b.Size, Format)
	}
	sum := sha256.New()
	switch err := read(b, io.TeeReader(io.LimitReader(in, b.Size), sum)); {
	case errors.Is(err, ErrBadSnapshot):
		return b, fmt.Errorf("%w: %w", ErrBad, err)
	case err != nil:
		return b, err
	}
	if hex.EncodeToString(sum.Sum(nil)) != b.SHA256 {
		return b, fmt.Errorf("%w: its checksum is wrong", ErrBad)
	}
	return b, nil
}
