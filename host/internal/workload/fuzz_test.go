package workload

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// A record of the journal that an earlier agent wrote is refused or means the same when it is written again.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"spec":{"id":"w"},"state":"running","owner":{"pid":7,"start_time":9},"steps":{"claim":{}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var once, twice record
		if json.Unmarshal(data, &once) != nil {
			return
		}
		written := check.Must(json.Marshal(once))(t)
		check.NoError(t, json.Unmarshal(written, &twice))
		if again := check.Must(json.Marshal(twice))(t); !bytes.Equal(again, written) {
			t.Errorf("%s is written again as %s", written, again)
		}
	})
}
