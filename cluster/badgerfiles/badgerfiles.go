// Package badgerfiles verifies the files of a Badger database before it is opened. Badger silently drops a table whose
// index is damaged, takes a truncated manifest for complete, and on other faults ends the process from its own
// goroutines.
package badgerfiles

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"google.golang.org/protobuf/proto"
)

// Damage names the damaged file.
type Damage struct {
	File string
	Err  error
}

func (e *Damage) Error() string { return fmt.Sprintf("%s is damaged: %v", e.File, e.Err) }
func (e *Damage) Unwrap() error { return e.Err }

func damaged(file, format string, args ...any) error {
	return &Damage{file, fmt.Errorf(format, args...)}
}

// Open opens the database in a directory after it has verified the files. The error is a *Damage, or one of the system.
func Open(options badger.Options) (db *badger.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = damaged(options.Dir, "%v", r)
		}
	}()
	if err := check(options.Dir, options); err != nil {
		return nil, err
	}
	db, err = badger.Open(options)
	if err != nil && !isSystems(err) {
		return nil, damaged(options.Dir, "%w", err)
	}
	return db, err
}

func check(dir string, options badger.Options) (err error) {
	lock, err := os.Open(dir) // as Badger locks it
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w (another process has it open)", dir, err)
	}
	path := filepath.Join(dir, badger.ManifestFilename)
	defer func() {
		if r := recover(); r != nil {
			err = damaged(path, "%v", r)
		}
	}()
	manifest, err := readManifest(path, options)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a new one
	}
	if err != nil {
		return err
	}
	registry, err := badger.OpenKeyRegistry(badger.KeyRegistryOptions{
		Dir: dir, ReadOnly: true,
		EncryptionKey: options.EncryptionKey,
	})
	if err != nil {
		return damaged(filepath.Join(dir, badger.KeyRegistryFileName), "%w", err)
	}
	if err := checkTables(dir, manifest.Tables, registry); err != nil {
		return err
	}
	return errors.Join(checkLogs(dir, registry), registry.Close())
}

func readManifest(path string, options badger.Options) (badger.Manifest, error) {
	f, err := os.Open(path)
	if err != nil {
		return badger.Manifest{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return badger.Manifest{}, err
	}
	manifest, end, err := badger.ReplayManifestFile(f, 0, options)
	if err != nil {
		return manifest, damaged(path, "%w", err)
	}
	if end != info.Size() {
		return manifest, damaged(path, "it is valid only up to byte %d of %d", end, info.Size())
	}
	return manifest, nil
}

func checkTables(dir string, tables map[uint64]badger.TableManifest, registry *badger.KeyRegistry) error {
	var buffer []byte
	for id, t := range tables {
		path := table.NewFilename(id, dir)
		key, err := registry.DataKey(t.KeyID)
		if err != nil {
			return damaged(path, "%w", err)
		}
		if buffer, err = checkFile(path, key, buffer); err != nil {
			return err
		}
	}
	return nil
}

// checkFile verifies the file of a table. It reads it into buffer if that is big enough, and returns the one it used.
func checkFile(path string, key *pb.DataKey, buffer []byte) (_ []byte, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = damaged(path, "%v", r)
		}
	}()
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return buffer, damaged(path, "it is missing")
	}
	if err != nil {
		return buffer, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return buffer, err
	}
	data := slices.Grow(buffer[:0], int(info.Size()))[:info.Size()]
	if _, err := io.ReadFull(f, data); err != nil {
		return data, err
	}
	if err := checkTable(data, key); err != nil {
		return data, damaged(path, "%w", err)
	}
	return data, nil
}

// checkTable verifies the checksums of a table's index and blocks. Read from its end, a table has the length of a
// checksum, the checksum, the length of the index, and the index, which says where the blocks are. A block ends in
// its checksum and the checksum's length.
func checkTable(data []byte, key *pb.DataKey) error {
	index, err := checked(data, func(rest *ending) ([]byte, error) { return rest.sized() })
	if err != nil {
		return fmt.Errorf("index: %w", err)
	}
	if index, err = decrypted(index, key); err != nil {
		return err
	}
	blocks := fb.GetRootAsTableIndex(index, 0)
	var at fb.BlockOffset
	for i := range blocks.OffsetsLength() {
		blocks.Offsets(&at, i)
		end := int(at.Offset()) + int(at.Len())
		if end > len(data) {
			return fmt.Errorf("block %d ends at byte %d of %d", i, end, len(data))
		}
		block, err := decrypted(data[at.Offset():end], key)
		if err != nil {
			return err
		}
		if _, err := checked(block, func(rest *ending) ([]byte, error) { return rest.data, nil }); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
	}
	return nil
}

// checked takes a checksum from the end of the data and compares it with the checksum of the part that it covers.
func checked(data []byte, part func(rest *ending) ([]byte, error)) ([]byte, error) {
	rest := &ending{data}
	sum, err := rest.sized()
	if err != nil {
		return nil, err
	}
	of, err := part(rest)
	if err != nil {
		return nil, err
	}
	var want pb.Checksum
	if err := proto.Unmarshal(sum, &want); err != nil {
		return nil, err
	}
	return of, y.VerifyChecksum(of, &want)
}

// ending is data that is read from its end.
type ending struct{ data []byte }

func (e *ending) take(n int) ([]byte, error) {
	if n < 0 || n > len(e.data) {
		return nil, fmt.Errorf("a part of %d bytes, where %d are left", n, len(e.data))
	}
	cut := len(e.data) - n
	taken := e.data[cut:]
	e.data = e.data[:cut]
	return taken, nil
}

// sized takes a part that is followed by its length.
func (e *ending) sized() ([]byte, error) {
	size, err := e.take(4)
	if err != nil {
		return nil, err
	}
	return e.take(int(binary.BigEndian.Uint32(size)))
}

// decrypted takes the initialization vector from the end of the data and decrypts the rest; without a key the data
// is plain.
func decrypted(data []byte, key *pb.DataKey) ([]byte, error) {
	if key == nil {
		return data, nil
	}
	rest := ending{data}
	iv, err := rest.take(16)
	if err != nil {
		return nil, err
	}
	return y.XORBlockAllocate(rest.data, key.Data, iv)
}

// logHeader is the size of the header of Badger's logs: the id of the key, and an initialization vector. The log
// follows, padded with zeros.
const logHeader = 8 + 12

// checkLogs checks the headers of the memtables' logs and of the value log.
func checkLogs(dir string, registry *badger.KeyRegistry) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		path, kind := filepath.Join(dir, file.Name()), filepath.Ext(file.Name())
		if kind != ".mem" && kind != ".vlog" {
			continue
		}
		head, err := readHead(path, logHeader)
		if err != nil {
			return err
		}
		if len(head) < logHeader {
			continue // created but not yet in use
		}
		if _, err := registry.DataKey(binary.BigEndian.Uint64(head)); err != nil {
			return damaged(path, "%w", err)
		}
	}
	return nil
}

// CheckMemtables refuses two memtables in use: of a damaged memtable Badger silently keeps what comes before the
// damage. That is an older database, but not if a newer memtable is based on the lost part.
func CheckMemtables(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	if err != nil {
		return err
	}
	used := 0
	for _, path := range files {
		head, err := readHead(path, logHeader+16)
		if err != nil {
			return err
		}
		if len(head) > logHeader && len(bytes.Trim(head[logHeader:], "\x00")) > 0 {
			used++
		}
		if used > 1 {
			return damaged(path, "there is a second memtable, and whether both are complete cannot be verified")
		}
	}
	return nil
}

// readHead reads the first bytes of a file, at most n.
func readHead(path string, n int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	head, err := io.ReadAll(io.LimitReader(f, int64(n)))
	return head, errors.Join(err, f.Close())
}

// isSystems reports whether an error is the system's and not due to a file's content: a full disk, or a file that
// may not be read. Badger keeps only the text of some.
func isSystems(err error) bool {
	return errors.As(err, new(syscall.Errno)) || slices.ContainsFunc([]syscall.Errno{
		syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EACCES, syscall.EPERM, syscall.EMFILE,
		syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN,
	}, func(e syscall.Errno) bool { return strings.Contains(err.Error(), e.Error()) })
}
