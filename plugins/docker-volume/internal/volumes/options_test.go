package volumes

import (
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

func TestOptions(t *testing.T) {
	c := &config{Namespace: "docker", Driver: "local"}
	w, err := c.read("data", nil)
	check.NoError(t, err)
	if w.defines || w.def.GetPluginId() != "local" || w.def.GetNamespace() != "docker" || w.def.GetCapacityMin() != 0 ||
		w.def.GetCapabilities()[0].GetAccessMode() != "single-node-writer" {
		t.Errorf("without options: %+v", w)
	}
	w, err = c.read("data", map[string]string{
		"driver": "ebs", "size": "10GiB", "access_mode": "multi-node-multi-writer", "fs_type": "xfs",
		"mount_options": "noatime,nodiratime", "namespace": "shop", "read_only": "true", "snapshot": "snap-1", "delete": "true",
		"clone": "other", "param.type": "gp3", "param.a.b": "c", "topology.zone": "z1",
	})
	check.NoError(t, err)
	d := w.def
	if !w.defines || d.GetPluginId() != "ebs" || d.GetCapacityMin() != 10<<30 || d.GetCapacityMax() != 0 ||
		d.GetCapabilities()[0].GetAccessMode() != "multi-node-multi-writer" || d.GetMountOptions().GetFsType() != "xfs" ||
		len(d.GetMountOptions().GetMountFlags()) != 2 || d.GetNamespace() != "shop" || d.GetSnapshotId() != "snap-1" ||
		d.GetCloneId() != "other" || d.GetParameters()["type"] != "gp3" || d.GetParameters()["a.b"] != "c" ||
		d.GetTopologyRequest().GetRequired()[0].GetSegments()["zone"] != "z1" || !w.use.ReadOnly || !w.use.Delete || w.use.Namespace != "shop" {
		t.Errorf("with all options: %+v", w)
	}
	w, err = c.read("data", map[string]string{"namespace": "shop", "read_only": "false"})
	if err != nil || w.defines {
		t.Errorf("options of the use alone define the volume: %+v, %v", w, err)
	}
}

func TestWrongOptions(t *testing.T) {
	c := &config{Namespace: "docker"}
	for name, test := range map[string]struct {
		volume string
		opts   map[string]string
		says   string
	}{
		"unknown":  {"v", map[string]string{"Size": "1GiB"}, `option "Size": is unknown; known are driver, size`},
		"no param": {"v", map[string]string{"param.": "1"}, `option "param.": is unknown`},
		"size":     {"v", map[string]string{"size": "-1"}, `"-1" is not a size such as "10GiB"`},
		"no unit":  {"v", map[string]string{"size": "100"}, `write 100GB or 100B`},
		"no size":  {"v", map[string]string{"size": "0"}, `at least 1 byte`},
		"bool":     {"v", map[string]string{"delete": "yes"}, `"yes" is neither true nor false`},
		"name":     {"../v", nil, "letters, digits"},
		"no name":  {"", nil, "letters, digits"},
		"name dot": {".", nil, "letters, digits"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.read(test.volume, test.opts); err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnonymous(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for name, want := range map[string]bool{hex: true, hex[1:]: false, "data": false, hex[1:] + "g": false} {
		if got := anonymous(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestConfig(t *testing.T) {
	for text, want := range map[string]bool{"100s": true, "1s": true, "110s": true, "111s": false, "0s": false, "x": false} {
		c := &config{Timeout: text}
		if err := c.Validate(); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
