package apiserver

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// A request larger than one caller may have in flight is refused before it is read as a whole, and a snapshot, which is
// read piece by piece, may be of any size. Without a certificate nothing is read.
func TestLargeBodies(t *testing.T) {
	s := New(Config{Name: "n1", Logger: hclog.NewNullLogger()})
	s.calls = newCallMetrics()
	operator := pki.Identity{DC: "dc1", Role: pki.CLI, Name: "ops"}
	const size = 64 << 20
	for _, c := range []struct {
		name, path string
		as         *pki.Identity
		most       int64
		all        bool
	}{
		{"a snapshot", hostv1connect.OperatorServiceRestoreSnapshotProcedure, &operator, size, true},
		{"a volume", hostv1connect.VolumeServiceRegisterVolumeProcedure, &operator, size / 2, false},
		{"nobody's volume", hostv1connect.VolumeServiceRegisterVolumeProcedure, nil, 0, false},
	} {
		for range 3 { // what was held is given back
			var read int64
			var failed error
			gate := s.gate(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				read, failed = io.Copy(io.Discard, r.Body)
			}))
			r := httptest.NewRequest(http.MethodPost, c.path, bytes.NewReader(make([]byte, size)))
			if c.as != nil {
				r = r.WithContext(transport.WithPeer(r.Context(), *c.as))
			}
			w := httptest.NewRecorder()
			gate.ServeHTTP(w, r)
			if read > c.most || c.all != (read == size && failed == nil) {
				t.Errorf("%s: %d bytes were read (%v)", c.name, read, failed)
			}
			if c.as == nil && w.Code != http.StatusForbidden {
				t.Errorf("%s: the answer is %d", c.name, w.Code)
			}
		}
	}
}
