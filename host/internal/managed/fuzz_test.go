package managed

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// A record that an earlier agent wrote, or a disk damaged, is refused or means the same when it is written again.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"serving":1,"runs":[{"number":1,"process":{"pid":7,"start_time":9}}],"refused":{"a":"b"}}`))
	path := filepath.Join(f.TempDir(), "record.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		var once, twice Record
		check.NoError(t, os.WriteFile(path, data, 0o600))
		if readRecord(path, &once) != nil {
			return
		}
		written := check.Must(json.Marshal(once))(t)
		check.NoError(t, os.WriteFile(path, written, 0o600))
		check.NoError(t, readRecord(path, &twice))
		if again := check.Must(json.Marshal(twice))(t); !bytes.Equal(again, written) {
			t.Errorf("%s is written again as %s", written, again)
		}
	})
}
