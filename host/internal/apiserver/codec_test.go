package apiserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/protobuf/proto"

	ledger "github.com/pannier/pannier/cluster/acl"
	"github.com/pannier/pannier/host/internal/apiserver/acl"
	"github.com/pannier/pannier/host/internal/peer/transport"
	"github.com/pannier/pannier/host/internal/system/pki"
	sdkapi "github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
	"github.com/pannier/pannier/test/lib/check"
)

// A request of many small parts is refused before they are made: 4 MiB of them take more than 100 times as much memory.
func TestManySmallParts(t *testing.T) {
	s := New(Config{Name: "n1", Logger: hclog.NewNullLogger()})
	s.calls = newCallMetrics()
	api := s.apiHandler(s.services)
	const size = maxRequest - 64
	document := `{"spec":{"volumes":[{}` + strings.Repeat(",{}", size/3) + `]}}`
	many := &hostv1.WorkloadSpec{Volumes: make([]*hostv1.VolumeRequest, size/2)}
	wire, err := proto.Marshal(&hostv1.CheckWorkloadRequest{Spec: many})
	check.NoError(t, err)
	for kind, body := range map[string]string{
		"application/json": document, "application/json; charset=utf-8": document, "application/proto": string(wire),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := request(t, api, kind, "", strings.NewReader(body))
		runtime.ReadMemStats(&after)
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 32 {
			t.Errorf("%s of %d MiB took %d MiB of memory", kind, len(body)>>20, took)
		}
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "more than 20000 parts") {
			t.Errorf("%s: the answer is %d %s", kind, w.Code, w.Body)
		}
	}
}

// Of the body of a call that a token does not permit in any namespace, no more is read than says what it is about.
func TestNoPermissionNoBody(t *testing.T) {
	reader := ledger.Granted{
		Token:    ledger.Token{Accessor: "a", Name: "reader", Type: ledger.Client},
		Policies: []ledger.Policy{{Name: "read", Rules: `namespace "*" { policy = "read" }`}},
	}
	s := New(Config{
		Logger: hclog.NewNullLogger(),
		ACL:    acl.NewResolver(tokensOf{ledger.Hash("any"): reader}, 0, hclog.NewNullLogger()),
	})
	s.calls = newCallMetrics()
	body := &counted{Reader: strings.NewReader(`{"spec":{"id":"` + strings.Repeat("w", maxRequest/2) + `"}}`)}
	w := request(t, s.apiHandler(s.services), "application/json", "any", body)
	if w.Code == http.StatusOK || body.n > 2*maxUnknown {
		t.Errorf("the answer is %d %s, after %d bytes were read", w.Code, w.Body, body.n)
	}
}

func request(t *testing.T, api http.Handler, kind, token string, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, hostv1connect.WorkloadServiceCheckWorkloadProcedure, body)
	r.Header.Set("Content-Type", kind)
	if token != "" {
		r.Header.Set(sdkapi.TokenHeader, token)
	}
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r.WithContext(transport.WithPeer(r.Context(), pki.Identity{Name: "ops", Role: pki.CLI, DC: "dc1"})))
	return w
}

// counted counts what is read.
type counted struct {
	io.Reader
	n int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += n
	return n, err
}

// What a request is in memory is bounded, in each encoding, and what is accepted in one is the same in the other.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"spec":{"id":"w","volumes":[{"name":"a"},{}],"meta":{"a":"b"}}}`), true)
	f.Add([]byte{0x0a, 0x04, 0x2a, 0x02, 0x0a, 0x00}, false)
	f.Fuzz(func(t *testing.T, data []byte, isJSON bool) {
		var m, again hostv1.CheckWorkloadRequest
		if decode(data, &m, isJSON) != nil {
			return
		}
		if n := messages(m.ProtoReflect()); n > maxNodes+1 {
			t.Errorf("%d messages were made", n)
		}
		wire := check.Must(proto.Marshal(&m))(t)
		if err := decode(wire, &again, false); err != nil || !proto.Equal(&m, &again) {
			t.Errorf("%v is read again as %v, %v", &m, &again, err)
		}
	})
}
