package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dgraph-io/badger/v4"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/lib/check"
)

// TestCompactRecords encodes records with a value in each field, and without any. A new field that is not in the
// list of fields is lost.
func TestCompactRecords(t *testing.T) {
	testCompact[claim.Volume](t)
	testCompact[claim.Claim](t)
	testCompact[claim.Workload](t)
	testCompact[kept](t)
}

func testCompact[T any](t *testing.T) {
	t.Helper()
	var empty, full T
	count := 0
	setAll(reflect.ValueOf(&full).Elem(), &count)
	for _, v := range []T{empty, full} {
		data, err := encode(v)
		check.NoError(t, err)
		if data[0] != compactVersion {
			t.Fatalf("%T is not compact", v)
		}
		// Fields of later programs, among the known ones and after them.
		later := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), []byte("later"))
		for _, stored := range [][]byte{data, append(data[:len(data):len(data)], later...)} {
			if got, err := decode[T](stored); err != nil || !reflect.DeepEqual(got, v) {
				t.Errorf("decoded %+v (%v), want %+v", got, err, v)
			}
		}
		for end := 1; end < len(data); end++ {
			_, _ = decode[T](data[:end]) // must not panic
		}
	}
	if _, err := decode[T]([]byte{compactVersion + 1}); !errors.Is(err, ErrNewerRecord) {
		t.Errorf("a later encoding: %v", err)
	}
	if _, err := decode[T]([]byte{compactVersion, 0x0a, 200}); err == nil {
		t.Error("a truncated record was decoded")
	}
}

// setAll sets all fields to different values.
func setAll(v reflect.Value, count *int) {
	*count++
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *count))
	case reflect.Int64:
		v.SetInt(-int64(*count) << 40)
	case reflect.Uint64:
		v.SetUint(uint64(*count) << 50)
	case reflect.Uint8:
		v.SetUint(uint64(*count % 256))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		setAll(v.Index(0), count)
		setAll(v.Index(1), count)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			setAll(key, count)
			setAll(value, count)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		if at, ok := v.Addr().Interface().(*time.Time); ok {
			*at = time.Unix(int64(*count), int64(*count)).UTC()
			return
		}
		for i := range v.NumField() {
			setAll(v.Field(i), count)
		}
	default:
		panic("setAll: " + v.Type().String())
	}
}

// TestCompactWords: known words are stored as numbers, and a number of a later program is not taken for another word.
func TestCompactWords(t *testing.T) {
	for _, state := range append(claim.States, "", "of-a-later-program") {
		c := claim.Claim{State: state, Mode: claim.Write, AccessMode: claim.MultiNodeMultiWriter}
		data, err := encode(c)
		check.NoError(t, err)
		if got, err := decode[claim.Claim](data); err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("decoded %+v (%v), want %+v", got, err, c)
		}
	}
	f := fields{data: []byte{compactVersion}}
	f.putNumber(10, uint64(len(states)+1))
	if c, err := decode[claim.Claim](f.data); !errors.Is(err, ErrNewerRecord) {
		t.Errorf("decoded %+v (%v)", c, err)
	}
}

// TestEarlierProgramRebuilds: an earlier program, which cannot read compact records, trusts a ledger whose file "open"
// has the boot id alone, or is not there.
func TestEarlierProgramRebuilds(t *testing.T) {
	boot, err := os.ReadFile(bootIDPath)
	check.NoError(t, err)
	dir := t.TempDir()
	trusted := func() bool {
		mark, err := os.ReadFile(filepath.Join(dir, openFile))
		return err != nil || string(mark) == strings.TrimSpace(string(boot))
	}
	var s *Store
	for range 2 { // anew, and after a clean close
		s, err = Open(dir, nil)
		check.NoError(t, err)
		if trusted() {
			t.Error("an earlier program trusts an open ledger")
		}
		check.NoError(t, s.Close())
		if trusted() {
			t.Error("an earlier program trusts a closed ledger")
		}
	}
}

// TestRecordsOfEarlierPrograms: a ledger with records as JSON is read, and each record becomes compact when it changes.
func TestRecordsOfEarlierPrograms(t *testing.T) {
	l := filled(t)
	before := l.records()
	check.NoError(t, l.gen.db.Update(func(txn *badger.Txn) error {
		for key, value := range before {
			if key[1] != '/' || value == "" {
				continue
			}
			old, err := snapshotRecord(key[:2], []byte(value))
			if err != nil {
				return err
			}
			if err := txn.Set([]byte(key), old); err != nil {
				return err
			}
		}
		return nil
	}))
	if got := l.records(); got["v/default/v0"][0] != '{' || got["c/default/v0/default/w1"][0] != '{' {
		t.Fatalf("no JSON in %q", got)
	}
	l.must(&command.EndWorkload{Ref: workload("w1")})
	got := l.records()
	if got["v/default/v0"][0] != '{' || got["c/default/v0/default/w1"][0] != compactVersion ||
		got["w/default/w1"][0] != compactVersion {
		t.Errorf("after the end of w1: %q", got)
	}
}
