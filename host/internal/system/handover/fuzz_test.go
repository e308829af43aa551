package handover

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
)

// What a program reads of the one before is refused, or it has the descriptors that were given and no others, and
// what it would tell the next program is the same.
func FuzzInherit(f *testing.F) {
	for _, text := range []string{
		`{"files":[{"name":"api","address":"/a","fd":$a},{"name":"lock","fd":$b}],"outcome":{"attempt":"x","to":"2"}}`,
		`{"files":[{"name":"api","fd":$a},{"name":"api","fd":$a}]}`, `{"files":[{"fd":0},{"fd":2},{"fd":-1}]}`,
		`{"files":[{"name":"api","fd":$a,"activated":true},{"fd":4096}]}`,
		`{"files":[{"fd":$b},{"fd":$a,"name":"x"},{"fd":1}]}`, `{"files":null,"files":[{}]}`, `null`, ``, `{`,
	} {
		f.Add(text)
	}
	for fd := range openFiles(f) { // which no program before has given
		unix.CloseOnExec(fd)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "\x00") {
			return // no variable of the environment has one
		}
		dir := t.TempDir()
		given := map[int]bool{}
		var fds []int
		for _, name := range []string{"a", "b"} {
			fd := check.Must(unix.Open(filepath.Join(dir, name), unix.O_CREAT|unix.O_RDWR, 0o600))(t) // as a program inherits it
			given[fd] = true
			fds = append(fds, fd)
		}
		filled := text
		for n, fd := range fds {
			filled = strings.ReplaceAll(filled, []string{"$a", "$b"}[n], strconv.Itoa(fd))
		}
		var told bundle
		if json.Unmarshal([]byte(filled), &told) == nil && told.Report != 0 {
			return // it would end with the input of this test
		}
		t.Setenv(envBundle, filled)
		in, err := Inherit()
		if _, left := os.LookupEnv(envBundle); left {
			t.Error("a child gets it too")
		}
		taken := map[int]bool{}
		if err == nil {
			b := bundle{Outcome: in.Outcome}
			for _, k := range in.sockets {
				if fd := int(k.file.Fd()); !given[fd] || taken[fd] || fd != k.FD {
					t.Errorf("%q: descriptor %d is taken, as %+v", filled, fd, k.passed)
				} else {
					taken[fd] = true
				}
				b.Files = append(b.Files, k.passed)
			}
			again := bundle{}
			variable := check.Must(b.variable())(t)
			check.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(variable, envBundle+"=")), &again))
			if !reflect.DeepEqual(again, b) {
				t.Errorf("%+v is told as %+v", b, again)
			}
		}
		for fd := range given {
			if taken[fd] {
				continue
			}
			if err := unix.Close(fd); err != nil && !errors.Is(err, unix.EBADF) {
				t.Error(err)
			}
		}
		if err == nil {
			for _, k := range in.sockets {
				_ = k.file.Close()
			}
		}
	})
}

// openFiles are the descriptors of this process.
func openFiles(f *testing.F) map[int]bool {
	all := map[int]bool{}
	for _, entry := range check.Must(os.ReadDir("/proc/self/fd"))(f) {
		all[check.Must(strconv.Atoi(entry.Name()))(f)] = true
	}
	return all
}
