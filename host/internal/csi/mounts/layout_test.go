package mounts

import (
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/mountuse"
)

var (
	redis = claim.WorkloadRef{Namespace: "default", ID: "redis"}
	data  = claim.VolumeRef{Namespace: "default", ID: "data"}
	rw    = Usage{AttachmentMode: claim.FileSystem, AccessMode: claim.SingleNodeWriter}
)

func TestPathsAreTheDocumentedOnes(t *testing.T) {
	l := Layout{Dir: "/var/lib/pannier/csi"}
	ro := rw
	ro.ReadOnly = true
	for got, want := range map[string]string{
		l.Driver("d"): "/var/lib/pannier/csi/d",
		l.Staging("d", data,
			rw): "/var/lib/pannier/csi/d/staging/default/data/rw-file-system-single-node-writer",
		l.Staging("d", data,
			ro): "/var/lib/pannier/csi/d/staging/default/data/ro-file-system-single-node-writer",
		l.StagingOf("d", data):             "/var/lib/pannier/csi/d/staging/default/data",
		l.WorkloadVolume("d", redis, data): "/var/lib/pannier/csi/d/per-workload/redis/default/data",
		l.Target("d", redis, data, rw,
			"the-volume"): "/var/lib/pannier/csi/d/per-workload/redis/default/data/rw-file-system-single-node-writer/the-volume",
	} {
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestVolumeOfAPath(t *testing.T) {
	l := Layout{Dir: "/csi"}
	for path, want := range map[string]string{
		"/csi/d/staging/ns/v/rw":                  "ns/v",
		"/csi/d/staging/ns/v/rw/deeper":           "ns/v",
		"/csi/d/staging/ns/v":                     "",
		"/csi/d/per-workload/w/ns/v/rw/request":   "ns/v",
		"/csi/d/per-workload/w/ns/v/rw/request/x": "ns/v",
		"/csi/d/per-workload/w/ns/v/rw":           "",
		"/csi/d/elsewhere/ns/v/rw/request/x":      "",
		"/csi/d":                                  "",
		"/csi":                                    "",
		"/":                                       "",
		"/csi/../csi/d/staging/ns/v/rw":           "ns/v",
		"/csix/d/staging/ns/v/rw":                 "",
		"/csi/d/staging/../../../etc/staging/x/y": "",
		"csi/d/staging/ns/v/rw":                   "",
		"/csi/d/staging/ns/data+5b0+5d/rw":        "ns/data[0]",
		"/csi/d/staging/ns/a+2b/rw":               "ns/a+",
		"/csi/d/staging/ns/a+2B/rw":               "ns/a+2B", // no name of the layout
		"/csi/d/staging/ns/a+/rw":                 "ns/a+",
		"/csi/d/staging/ns/a+6/rw":                "ns/a+6",
		"/csi/d/staging/ns/a+61/rw":               "ns/a+61",
		"/csi/d/staging/ns/a+2f/rw":               "ns/a+2f",
	} {
		ref, ok := l.Volume(path)
		if ok != (want != "") || ok && ref.String() != want {
			t.Errorf("%s: got %q %t, want %q", path, ref, ok, want)
		}
	}
}

// Every path of the layout is recognised, is in its driver's directory, and belongs to one object only.
func TestVolumeReadsBackEveryPath(t *testing.T) {
	id := rapid.StringMatching(`[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}`).Filter(
		func(s string) bool { return claim.CheckID(s) == nil })
	volumeID := rapid.StringMatching(`[!-.0-~]{1,70}`).Filter(func(s string) bool { return claim.CheckVolumeID(s) == nil })
	rapid.Check(t, func(t *rapid.T) {
		l := Layout{Dir: rapid.SampledFrom([]string{"/csi", "/var/lib/a b/[x]*/staging/csi"}).Draw(t, "dir")}
		driver, request := id.Draw(t, "driver"), id.Draw(t, "request")
		w := claim.WorkloadRef{Namespace: id.Draw(t, "namespace"), ID: id.Draw(t, "workload")}
		v := claim.VolumeRef{Namespace: w.Namespace, ID: rapid.OneOf(id, volumeID).Draw(t, "volume")}
		u := Usage{
			ReadOnly:       rapid.Bool().Draw(t, "read only"),
			AttachmentMode: rapid.SampledFrom(claim.AttachmentModes).Draw(t, "attachment"),
			AccessMode:     rapid.SampledFrom(claim.AccessModes).Draw(t, "access"),
		}
		staging, target := l.Staging(driver, v, u), l.Target(driver, w, v, u, request)
		for _, path := range []string{staging, target} {
			if ref, ok := l.Volume(path); !ok || ref != v {
				t.Fatalf("%s is read as volume %q (%t), want %q", path, ref, ok, v)
			}
			if !strings.HasPrefix(path, l.Driver(driver)+"/") || filepath.Clean(path) != path {
				t.Fatalf("%s is not in the folder of driver %q", path, driver)
			}
			if !mountuse.OfAnAgent(path) {
				t.Fatalf("%s is not recognised as an agent's", path)
			}
			if dir, rel, err := l.split(path); err != nil || dir != l.Driver(driver) || filepath.Join(dir, rel) != path {
				t.Fatalf("%s is cut into %s and %s: %v", path, dir, rel, err)
			}
		}
		if name := filepath.Base(l.StagingOf(driver, v)); len(name) > 255 || claim.CheckID(v.ID) == nil && name != v.ID ||
			strings.Trim(name, "+-_.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			t.Fatalf("the directory of volume %q is %q", v.ID, name)
		}
		if strings.HasPrefix(staging, target) || strings.HasPrefix(target, staging) {
			t.Fatalf("%s and %s overlap", staging, target)
		}
		if filepath.Dir(staging) != l.StagingOf(driver, v) ||
			filepath.Dir(filepath.Dir(target)) != l.WorkloadVolume(driver, w, v) {
			t.Fatal("the folders of a volume are not above its paths")
		}
	})
}

func TestCheckRefusesLinks(t *testing.T) {
	dir := resolved(t, t.TempDir())
	if err := (Layout{Dir: filepath.Join(dir, "not", "there")}).Check(); err != nil {
		t.Errorf("a folder that is still to be made: %v", err)
	}
	if err := (Layout{Dir: dir}).Check(); err != nil {
		t.Error(err)
	}
	link := filepath.Join(dir, "link")
	symlink(t, dir, link)
	for _, bad := range []string{link, filepath.Join(link, "link"), dir + "/", "."} {
		if err := (Layout{Dir: bad}).Check(); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}
