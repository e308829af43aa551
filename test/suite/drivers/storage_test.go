package drivers

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
)

// bucketMount stands in for geesefs: it binds the folder that has a bucket's objects.
const bucketMount = `#!/bin/bash
bucket=${*: -2:1}
exec /usr/bin/mount --bind "${0%/bin/*}/share/${bucket%%:*}" "${*: -1}"
`

// noCrypt stands in for cryptsetup on a host without encrypted volumes.
const noCrypt = `#!/bin/bash
[[ $1 == status ]] || exit 1
echo "/dev/mapper/${2-} is inactive."
exit 4
`

// storage is what a driver's volumes are on.
type storage struct {
	env map[string]string
	// volume is added to the specification of each volume.
	volume string
}

// mountShare makes a share that is a file system of its own, as remote storage is.
func mountShare(t testing.TB, share string) {
	t.Helper()
	check.NoError(t, os.MkdirAll(share, 0o755))
	check.NoError(t, unix.Mount("tmpfs", share, "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { _ = unix.Unmount(share, unix.MNT_DETACH) })
}

// folder makes a folder of the share.
func folder(name string) func(testing.TB, string) storage {
	return func(t testing.TB, share string) storage {
		t.Helper()
		check.NoError(t, os.MkdirAll(filepath.Join(share, name), 0o755))
		return storage{}
	}
}

// buckets serves the part of the S3 API that k8s-csi-s3 calls. A bucket is a folder of the share.
func buckets(t testing.TB, share string) storage {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		bucket, object, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/")
		at := filepath.Join(share, bucket)
		_, err := os.Stat(at)
		switch {
		case r.Method == http.MethodPut && object == "":
			err = os.MkdirAll(at, 0o777)
		case err != nil:
		case r.Method == http.MethodGet:
			err = listObjects(w, at)
		case r.Method == http.MethodPost:
			err = deleteObjects(w, r, at)
		case r.Method == http.MethodDelete:
			err = os.RemoveAll(filepath.Join(at, object))
			w.WriteHeader(http.StatusNoContent)
		}
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>")
		}
	}))
	t.Cleanup(server.Close)
	secrets := fmt.Sprintf("accessKeyID = \"id\"\nsecretAccessKey = \"key\"\nregion = \"us-east-1\"\nendpoint = %q\n", server.URL)
	return storage{volume: "secrets {\n" + secrets + "}\n"}
}

func listObjects(w http.ResponseWriter, bucket string) error {
	type object struct{ Key string }
	var list struct {
		XMLName  xml.Name `xml:"ListBucketResult"`
		Contents []object
	}
	err := filepath.WalkDir(bucket, func(path string, _ fs.DirEntry, err error) error {
		if key, found := strings.CutPrefix(path, bucket+"/"); found {
			list.Contents = append(list.Contents, object{key})
		}
		return err
	})
	if err != nil {
		return err
	}
	return xml.NewEncoder(w).Encode(list)
}

func deleteObjects(w http.ResponseWriter, r *http.Request, bucket string) error {
	var list struct {
		Object []struct{ Key string }
	}
	if err := xml.NewDecoder(r.Body).Decode(&list); err != nil {
		return err
	}
	for _, o := range list.Object {
		if err := os.RemoveAll(filepath.Join(bucket, o.Key)); err != nil {
			return err
		}
	}
	_, err := fmt.Fprint(w, "<DeleteResult></DeleteResult>")
	return err
}

// cloud is a fake of Hetzner's API and metadata service with one server, 1. An attached volume is a loop device.
type cloud struct {
	share string

	mu      sync.Mutex
	last    int64
	volumes map[int64]*disk
}

// disk is a volume as the API shows it. Size is in GB.
type disk struct {
	ID       int64             `json:"id"`
	Name     string            `json:"name"`
	Server   *int64            `json:"server"`
	Status   string            `json:"status"`
	Location map[string]any    `json:"location"`
	Size     int64             `json:"size"`
	Device   string            `json:"linux_device"`
	Labels   map[string]string `json:"labels"`
}

// hetzner serves a cloud. The driver reaches the metadata service by an HTTP proxy, since its address is fixed.
func hetzner(t testing.TB, share string) storage {
	t.Helper()
	c := &cloud{share: share, volumes: map[int64]*disk{}}
	meta := func(path, answer string) (string, http.HandlerFunc) {
		return "GET /hetzner/v1/metadata/" + path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }
	}
	mux := http.NewServeMux()
	mux.HandleFunc(meta("hostname", "a"))
	mux.HandleFunc(meta("instance-id", "1"))
	mux.HandleFunc(meta("availability-zone", "fsn1-dc14"))
	mux.HandleFunc("GET /v1/servers/1", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"server": map[string]any{"id": 1, "name": "a", "status": "running"}})
	})
	mux.HandleFunc("GET /v1/volumes", c.list)
	mux.HandleFunc("POST /v1/volumes", c.create)
	mux.HandleFunc("GET /v1/volumes/{id}", c.with(func(d *disk, _ *http.Request) any { return map[string]any{"volume": d} }))
	mux.HandleFunc("DELETE /v1/volumes/{id}", c.with(func(d *disk, _ *http.Request) any {
		delete(c.volumes, d.ID)
		_ = os.Remove(c.file(d))
		return nil
	}))
	mux.HandleFunc("POST /v1/volumes/{id}/actions/{action}", c.with(c.act))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json") // of errors, too: else the driver does not read their codes
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		for _, d := range c.volumes {
			c.detach(d)
		}
	})
	return storage{env: map[string]string{
		"HCLOUD_TOKEN": strings.Repeat("t", 64), "HCLOUD_ENDPOINT": server.URL + "/v1", "HTTP_PROXY": server.URL,
		"HCLOUD_POLLING_INTERVAL_SECONDS": "1", "ENABLE_METRICS": "false",
	}}
}

func answer(w http.ResponseWriter, v any) {
	_ = json.NewEncoder(w).Encode(v) // the driver notices
}

// done is an action that has ended.
func done() map[string]any {
	const at = "2026-01-01T00:00:00+00:00"
	return map[string]any{"id": 1, "command": "done", "status": "success", "progress": 100, "started": at, "finished": at}
}

func (c *cloud) list(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := []*disk{}
	for _, d := range c.volumes {
		if name := r.URL.Query().Get("name"); name == "" || name == d.Name {
			found = append(found, d)
		}
	}
	answer(w, map[string]any{"volumes": found})
}

func (c *cloud) create(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	d := &disk{ID: c.last, Status: "available", Location: map[string]any{"id": 1, "name": "fsn1"}}
	err := json.NewDecoder(r.Body).Decode(&struct {
		Name *string
		Size *int64
	}{&d.Name, &d.Size})
	for _, other := range c.volumes {
		if other.Name == d.Name {
			w.WriteHeader(http.StatusConflict)
			answer(w, map[string]any{"error": map[string]any{"code": "uniqueness_error", "message": "name is already used"}})
			return
		}
	}
	if err == nil {
		err = c.truncate(d)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	c.volumes[d.ID] = d
	w.WriteHeader(http.StatusCreated)
	answer(w, map[string]any{"volume": d, "action": done(), "next_actions": []any{}})
}

// with calls one for the volume that a path names.
func (c *cloud) with(one func(*disk, *http.Request) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
		d := c.volumes[id]
		if d == nil {
			w.WriteHeader(http.StatusNotFound)
			answer(w, map[string]any{"error": map[string]any{"code": "not_found", "message": "volume not found"}})
			return
		}
		switch v := one(d, r).(type) {
		case nil:
			w.WriteHeader(http.StatusNoContent)
		case error:
			http.Error(w, v.Error(), http.StatusInternalServerError)
		default:
			answer(w, v)
		}
	}
}

func (c *cloud) act(d *disk, r *http.Request) any {
	var err error
	switch r.PathValue("action") {
	case "attach":
		var out []byte
		out, err = exec.Command("losetup", "--find", "--show", c.file(d)).Output()
		d.Device, d.Server = strings.TrimSpace(string(out)), new(int64(1))
	case "detach":
		c.detach(d)
	case "resize":
		var size struct{ Size int64 }
		if err = json.NewDecoder(r.Body).Decode(&size); err != nil {
			break
		}
		d.Size = size.Size
		if err = c.truncate(d); err == nil && d.Server != nil {
			err = exec.Command("losetup", "--set-capacity", d.Device).Run()
		}
	}
	if err != nil {
		return err
	}
	return map[string]any{"action": done()}
}

func (c *cloud) detach(d *disk) {
	if d.Server != nil {
		_ = exec.Command("losetup", "--detach", d.Device).Run()
	}
	d.Device, d.Server = "", nil
}

func (c *cloud) file(d *disk) string { return filepath.Join(c.share, strconv.FormatInt(d.ID, 10)) }

// truncate makes the volume's file as large as it is said to be.
func (c *cloud) truncate(d *disk) error {
	f, err := os.OpenFile(c.file(d), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Truncate(d.Size << 30)
}
