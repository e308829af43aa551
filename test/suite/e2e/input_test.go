package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testhost"
)

const goodVolumeJSON = `{
  "id": "good",
  "type": "csi",
  "plugin_id": "local",
  "capability": [{"access_mode": "single-node-writer", "attachment_mode": "file-system"}]
}`

// A bad spec, in HCL or JSON, causes an error that names file, line and key, and the exit code for bad specs.
// Nothing is written.
func TestBadSpecs(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	before := written(t, h)
	long := strings.Repeat("x", 129)
	json := func(old, now string) string { return strings.Replace(goodVolumeJSON, old, now, 1) }
	for name, c := range map[string]struct{ file, content, place, key string }{
		"unknown key":       {"v.json", json(`"type"`, `"colour": "red", "type"`), "v.json:3", "colour"},
		"wrong type":        {"v.json", json(`"csi"`, `["csi"]`), "v.json:3", "type"},
		"number for an id":  {"v.json", json(`"good"`, `[1]`), "v.json:2", "id"},
		"no id":             {"v.json", json(`"id": "good",`, ``), "v.json", "id"},
		"traversal":         {"v.json", json(`"good"`, `"../../etc"`), "v.json:2", "id"},
		"dots":              {"v.json", json(`"good"`, `".."`), "v.json:2", "id"},
		"129 characters":    {"v.json", json(`"good"`, `"`+long+`"`), "v.json:2", "129"},
		"a NUL":             {"v.json", json(`"good"`, `"go\u0000od"`), "v.json:2", "id"},
		"not UTF-8":         {"v.json", json(`good`, "go\xffod"), "v.json:2", "id"},
		"not JSON":          {"v.json", goodVolumeJSON[:40], "v.json", ""},
		"empty":             {"v.hcl", "", "v.hcl", "id"},
		"not HCL":           {"v.hcl", "id = \"x", "v.hcl:1", ""},
		"NUL in HCL":        {"v.hcl", "id = \"a\x00b\"\ntype = \"csi\"\n", "v.hcl:1", ""},
		"traversal in HCL":  {"v.hcl", "id = \"../x\"\ntype = \"csi\"\n", "v.hcl:1", "id"},
		"a driver's id":     {"v.hcl", "id = \"x\"\nplugin_id = \"a/b\"\ntype = \"csi\"\n", "v.hcl:2", "plugin_id"},
		"an unknown mode":   {"v.json", json("single-node-writer", "everybody"), "v.json:5", "access_mode"},
		"a size that isn't": {"v.json", json(`"type"`, `"capacity_min": "much", "type"`), "v.json:3", "capacity_min"},
	} {
		path := h.Write(c.file, c.content)
		for _, command := range []string{"create", "register"} {
			if r := h.Try("volume", command, path); r.Code != 2 || !strings.Contains(r.Stderr, c.place) ||
				!strings.Contains(r.Stderr, c.key) {
				t.Errorf("volume %s of %s: exit code %d, want 2, with %q and %q: %s", command, name, r.Code, c.place, c.key,
					r.Stderr)
			}
		}
	}
	one := "  volume \"a\" {\n    source = \"v\"\n    destination = \"/mnt/a\"\n  }\n"
	for name, c := range map[string]struct{ content, place, key string }{
		"unknown key": {"workload \"w\" {\n  colour = \"red\"\n}\n", "w.hcl:2", "colour"},
		"wrong type": {
			"workload \"w\" {\n" + strings.Replace(one, `"v"`, `["v", "v"]`, 1) + "}\n", "w.hcl:3",
			"source",
		},
		"traversal":      {"workload \"../w\" {\n" + one + "}\n", "w.hcl:1", "id"},
		"129 characters": {"workload \"" + long + "\" {\n" + one + "}\n", "w.hcl:1", "129"},
		"no source": {
			"workload \"w\" {\n" + strings.Replace(one, "source", "# source", 1) + "}\n", "w.hcl:2",
			"source",
		},
		"relative destination": {
			"workload \"w\" {\n" + strings.Replace(one, "/mnt/a", "mnt/a", 1) + "}\n", "w.hcl:4",
			"destination",
		},
		"climbing destination": {
			"workload \"w\" {\n" + strings.Replace(one, "/mnt/a", "/mnt/../etc", 1) + "}\n", "w.hcl:4",
			"destination",
		},
		"NUL in a destination": {
			"workload \"w\" {\n" + strings.Replace(one, "/mnt/a", `/mnt/\u0000a`, 1) + "}\n", "w.hcl:4",
			"destination",
		},
		"line in a path": {
			"workload \"w\" {\n" + strings.Replace(one, "/mnt/a", `/mnt/\na`, 1) + "}\n", "w.hcl:4",
			"destination",
		},
		"one destination": {
			"workload \"w\" {\n" + one + strings.Replace(one, `"a"`, `"b"`, 1) + "}\n", "w.hcl:8",
			"destination",
		},
		"two of one name": {"workload \"w\" {\n" + one + one + "}\n", "w.hcl:6", "a"},
	} {
		r := h.Try("workload", "start", h.Write("w.hcl", c.content))
		if r.Code != 2 || !strings.Contains(r.Stderr, c.place) || !strings.Contains(r.Stderr, c.key) {
			t.Errorf("workload start of %s: exit code %d, want 2, with %q and %q: %s", name, r.Code, c.place, c.key, r.Stderr)
		}
	}
	for name, c := range map[string]struct{ content, place, key string }{
		"unknown key":    {"name = \"a\"\ncolour = \"red\"\n", "bad.hcl:2", "colour"},
		"wrong type":     {"ports {\n  http = \"many\"\n}\n", "bad.hcl:2", "http"},
		"traversal":      {"csi_driver \"../x\" {\n  endpoint = \"unix:///x\"\n}\n", "bad.hcl:1", "csi_driver"},
		"129 characters": {"csi_driver \"" + long + "\" {\n}\n", "bad.hcl:1", "129"},
		"relative":       {"csi_driver \"x\" {\n  endpoint = \"unix://x\"\n}\n", "bad.hcl:2", "endpoint"},
	} {
		r := h.Try("agent", "-config", h.Write("bad.hcl", c.content))
		if r.Code != 2 || !strings.Contains(r.Stderr, c.place) || !strings.Contains(r.Stderr, c.key) {
			t.Errorf("the agent with %s: exit code %d, want 2, with %q and %q: %s", name, r.Code, c.place, c.key, r.Stderr)
		}
	}
	if after := written(t, h); after != before {
		t.Errorf("bad specs have changed the ledger:\n%s\nit was\n%s", after, before)
	}
	h.Refused(3, []string{"nowhere"}, "workload", "start", workload(h, "w", "nowhere", ""))
	h.NothingInUse()
}

// Requests that the CLI's parser would not allow are refused by the API with the right code, and write
// nothing.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	h := testhost.New(t, testhost.LocalDriver(t))
	h.Start()
	volume(h, drivers[0], "v", "single-node-writer", "")
	before := written(t, h)
	long := strings.Repeat("x", 129)
	spec := func(more string) string {
		return `{"spec": {"type": "csi", "pluginId": "local", "externalId": "e", "capabilities": [{"accessMode": "single-node-writer", "attachmentMode": "file-system"}], ` + more + `}}`
	}
	request := func(more string) string {
		return `{"spec": {"id": "w", "volumes": [{"name": "a", "source": "v", "destination": "/mnt/a"}` + more + `]}}`
	}
	for name, c := range map[string]struct{ method, body string }{
		"not JSON":                {"VolumeService/RegisterVolume", `{"spec": `},
		"not UTF-8":               {"VolumeService/RegisterVolume", spec("\"id\": \"a\xff\"")},
		"a wrong type":            {"VolumeService/RegisterVolume", spec(`"id": ["x"]`)},
		"no id":                   {"VolumeService/RegisterVolume", spec(`"name": "x"`)},
		"no spec":                 {"VolumeService/CreateVolume", `{}`},
		"traversal":               {"VolumeService/RegisterVolume", spec(`"id": "../x"`)},
		"dots":                    {"VolumeService/RegisterVolume", spec(`"id": ".."`)},
		"a NUL":                   {"VolumeService/RegisterVolume", spec(`"id": "a\u0000"`)},
		"129 characters":          {"VolumeService/RegisterVolume", spec(`"id": "` + long + `"`)},
		"a namespace that climbs": {"VolumeService/RegisterVolume", spec(`"id": "x", "namespace": "../y"`)},
		"sizes that cross": {
			"VolumeService/CreateVolume",
			strings.Replace(spec(`"id": "x", "capacityMin": "2", "capacityMax": "1"`), `"externalId": "e", `, "", 1),
		},
		"a huge context": {
			"VolumeService/RegisterVolume",
			spec(`"id": "x", "context": {"k": "` + strings.Repeat("v", 1<<20) + `"}`),
		},
		"a node that climbs":       {"VolumeService/DetachVolume", `{"id": "v", "node": "../a"}`},
		"a snapshot's name":        {"VolumeService/CreateSnapshot", `{"volumeId": "v", "name": "../s"}`},
		"a volume to delete":       {"VolumeService/DeleteVolume", `{"id": "../v"}`},
		"an expansion to nothing":  {"VolumeService/ExpandVolume", `{"id": "v", "capacityMin": "-1"}`},
		"a driver that climbs":     {"DriverService/RegisterDriver", `{"id": "../x", "endpoint": "unix:///x"}`},
		"a workload that climbs":   {"WorkloadService/GetWorkload", `{"id": "../w"}`},
		"a workload without an id": {"WorkloadService/StopWorkload", `{}`},
		"one destination": {
			"WorkloadService/StartWorkload",
			request(`, {"name": "b", "source": "v", "destination": "/mnt/a"}`),
		},
		"one name": {
			"WorkloadService/StartWorkload",
			request(`, {"name": "a", "source": "v", "destination": "/mnt/b"}`),
		},
		"a source that climbs": {
			"WorkloadService/StartWorkload",
			request(`, {"name": "b", "source": "../v", "destination": "/mnt/b"}`),
		},
		"a destination that climbs": {
			"WorkloadService/StartWorkload",
			request(`, {"name": "b", "source": "v", "destination": "/mnt/../b"}`),
		},
		"a destination with a NUL": {
			"WorkloadService/StartWorkload",
			request(`, {"name": "b", "source": "v", "destination": "/mnt/\u0000"}`),
		},
		"a destination with a line": {
			"WorkloadService/StartWorkload",
			request(`, {"name": "b", "source": "v", "destination": "/mnt/\nb"}`),
		},
		"more volumes than may be": {"WorkloadService/StartWorkload", request(manyRequests(200))},
		"a program's huge arguments": {
			"WorkloadService/StartWorkload",
			`{"spec": {"id": "w", "exec": {"command": "x", "args": ["` + strings.Repeat("a", 3<<20) + `"]}}}`,
		},
		"an unknown key": {"VolumeService/DetachVolume", `{"id": "v", "node": "a", "forced": true}`},
		"a misspelt key": {
			"WorkloadService/StartWorkload",
			request(`, {"name": "b", "source": "v", "destination": "/mnt/b", "readonly": true}`),
		},
		"a process that is none": {"WorkloadService/RunningWorkload", `{"id": "w", "pid": -1}`},
		"a request that is too large": {
			"VolumeService/RegisterVolume",
			spec(`"id": "x", "name": "` + strings.Repeat("n", 5<<20) + `"`),
		},
	} {
		code, text := call(t, h, c.method, []byte(c.body))
		if want := "invalid_argument"; code != want &&
			(name != "a request that is too large" || code != "resource_exhausted") {
			t.Errorf("%s: %s answers %q, want %q: %.300s", name, c.method, code, want, text)
		}
	}
	if after := written(t, h); after != before {
		t.Errorf("bad requests have changed the ledger:\n%s\nit was\n%s", after, before)
	}
	if code, text := call(t, h, "WorkloadService/StartWorkload",
		[]byte(
			`{"spec": {"id": "w", "volumes": [{"name": "a", "source": "nowhere", "destination": "/a"}]}}`)); code != "not_found" {
		t.Errorf("a claim on a volume that does not exist answers %q: %s", code, text)
	}
	h.NothingInUse()
}

func manyRequests(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `, {"name": "b%d", "source": "v", "destination": "/mnt/b%d"}`, i, i)
	}
	return b.String()
}

// call makes a call as curl would, and returns the error's code and the answer. Messages of a stream have a
// prefix of five bytes (Connect protocol).
func call(t *testing.T, h *testhost.Host, method string, body []byte) (code, text string) {
	t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.Socket())
	}
	kind := "application/json"
	if strings.HasSuffix(method, "/StartWorkload") || strings.HasSuffix(method, "/StopWorkload") {
		kind = "application/connect+json"
		n := len(body)
		body = append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, body...)
	}
	transport := &http.Transport{DialContext: dial}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Post("http://pannier/pannier.host.v1."+method, kind,
		bytes.NewReader(body))
	if err != nil {
		return "unanswered", err.Error()
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return "cut off", err.Error()
	}
	_, after, _ := strings.Cut(string(answer), `"code":"`)
	code, _, _ = strings.Cut(after, `"`)
	return code, string(answer)
}

// written returns the content of the ledger and the names of all existing directories.
func written(t *testing.T, h *testhost.Host) string {
	t.Helper()
	s, err := h.Status()
	must(t, err)
	volumes := h.Run("volume", "status", "-o", "json")
	// The agent itself writes to the ledger, such as that its driver has become healthy.
	return regexp.MustCompile(`"index": \d+`).ReplaceAllString(volumes, "") +
		fmt.Sprint(s.GetClaims(), s.GetVolumes(), s.GetWorkloads(), folders(t, h))
}

func folders(t *testing.T, h *testhost.Host) (names []string) {
	t.Helper()
	for _, dir := range []string{"", "data", "data/csi"} {
		entries, err := os.ReadDir(h.Path(dir))
		must(t, err)
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	return names
}
