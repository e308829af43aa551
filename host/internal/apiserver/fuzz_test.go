package apiserver

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
)

// FuzzAPI sends any bytes as the body of each call of the API, in each of its encodings, by a caller with a certificate
// and no token. It is refused, and nothing panics.
func FuzzAPI(f *testing.F) {
	kinds := []string{
		"application/json", "application/proto", "application/grpc", "application/grpc+json", "application/grpc-web+proto",
		"application/connect+json", "application/connect+proto", "text/plain",
	}
	log := &bytes.Buffer{}
	s := New(Config{
		Logger: hclog.New(&hclog.LoggerOptions{Output: log, Level: hclog.Error}),
		ACL:    acl.NewResolver(tokensOf{}, 0, hclog.NewNullLogger()),
	})
	s.calls = newCallMetrics()
	api, all := s.apiHandler(s.services), procedures()
	for _, open := range who["none other read write denied"] { // these need a host
		delete(all, open)
	}
	calls := slices.Sorted(maps.Keys(all))
	frame := func(flags byte, size int, body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(size)), body...)
	}
	packed := &bytes.Buffer{}
	z := gzip.NewWriter(packed)
	_, _ = z.Write(bytes.Repeat([]byte{0}, 64<<10))
	_ = z.Close()
	for n := range kinds {
		for call := range calls {
			f.Add(uint16(call), byte(n), false, []byte(`{"id":"x","spec":{"id":1},"read":{"stale":true}}`))
		}
		f.Add(uint16(0), byte(n), true, packed.Bytes())
		f.Add(uint16(0), byte(n), true, frame(1, packed.Len(), packed.String()))
		f.Add(uint16(1), byte(n), false, frame(0, 2, "{}"))
		f.Add(uint16(2), byte(n), false, frame(0, 1<<32-1, "{}"))
		f.Add(uint16(3), byte(n), false, []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x0a})
		f.Add(uint16(4), byte(n), false, []byte(strings.Repeat(`{"spec":`, 1000)))
	}
	f.Fuzz(func(t *testing.T, call uint16, kind byte, zipped bool, body []byte) {
		path := calls[int(call)%len(calls)]
		r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(body))
		r.ProtoMajor, r.ProtoMinor = 2, 0
		r.Header.Set("Content-Type", kinds[int(kind)%len(kinds)])
		if zipped {
			r.Header.Set("Content-Encoding", "gzip")
			r.Header.Set("Grpc-Encoding", "gzip")
			r.Header.Set("Connect-Content-Encoding", "gzip")
		}
		ctx := transport.WithPeer(r.Context(), pki.Identity{Name: "ops", Role: pki.CLI, DC: "dc1"})
		wantsStale(methodOf(path), r.Header, body)
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r.WithContext(ctx))
		if log.Len() > 0 {
			t.Errorf("%s: %s", path, log)
			log.Reset()
		}
		answer := w.Result()
		defer answer.Body.Close()
		status := answer.Header.Get("Grpc-Status") + answer.Trailer.Get("Grpc-Status")
		text := w.Body.String()
		if answer.StatusCode == http.StatusOK && (status == "" || status == "0") && !strings.Contains(text, `"error"`) &&
			!strings.Contains(strings.ToLower(text), "grpc-status") {
			t.Errorf("%s is answered: %v %q", path, answer.Header, text)
		}
	})
}
