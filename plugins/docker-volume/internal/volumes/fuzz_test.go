package volumes

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
)

// FuzzRequest: whatever Docker asks with, the answer is JSON, and nothing panics.
func FuzzRequest(f *testing.F) {
	calls := []string{"Create", "Get", "List", "Remove", "Mount", "Unmount", "Path", "Capabilities"}
	for n := range calls {
		f.Add(uint8(n), `{"Name": "data", "ID": "1", "Opts": {"size": "1GiB", "delete": "true"}}`)
		f.Add(uint8(n), `{"Name": ["data"], "Opts": {"size": null}}`)
		f.Add(uint8(n), ``)
	}
	f.Fuzz(func(t *testing.T, what uint8, body string) {
		synctest.Test(t, func(t *testing.T) {
			s := newService(t, &host{}, &memory{data: map[string][]byte{}})
			w, path := httptest.NewRecorder(), "/VolumeDriver."+calls[int(what)%len(calls)]
			s.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body)))
			if w.Code != http.StatusOK && w.Code != http.StatusInternalServerError || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s %q: %d %q", path, body, w.Code, w.Body)
			}
		})
	})
}
