package cli

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestMountHelperArguments(t *testing.T) {
	plain := mountRequest{source: "data", target: "/data", namespace: "default", timeout: mountWait}
	with := func(change func(*mountRequest)) mountRequest {
		r := plain
		change(&r)
		return r
	}
	for _, c := range []struct {
		args string
		want mountRequest
		err  string // a part of it
	}{
		{args: "data /data", want: plain},
		{args: "pannier:data /data -o rw,_netdev,x-systemd.requires=pannier.socket,nofail,x-mount.mkdir,defaults -t pannier", want: with(
			func(r *mountRequest) { r.noted = []string{"x-systemd.requires=pannier.socket"} })},
		{args: "-v data /data/ -sn", want: plain},
		{args: "data /data -fv", want: with(func(r *mountRequest) { r.fake = true })},
		{args: "data /data -o ro,noexec -onoatime", want: with(func(r *mountRequest) {
			r.readOnly, r.flags = true, []string{"noexec", "noatime"}
		})},
		{args: "data /data -o namespace=team,access=multi-node-multi-writer,timeout=5,discard", want: with(
			func(r *mountRequest) {
				r.namespace, r.access, r.timeout, r.driver = "team", "multi-node-multi-writer", 5*time.Second, []string{"discard"}
			})},
		{args: "data /data -o timeout=2m", want: with(func(r *mountRequest) { r.timeout = 2 * time.Minute })},
		{args: "data", err: "want a volume and a mount point"},
		{args: "data /data more", err: "want a volume and a mount point"},
		{args: "data /data -o", err: "-o needs a value"},
		{args: "data /data -N 12", err: "mount namespace"},
		{args: "data /data -o timeout=-1s", err: "timeout"},
		{args: "data /data -o helper=other", err: "option helper is not possible"},
		{args: "data /data -o namespace=a/b", err: "option namespace"},
		{args: "/data /data", err: "write pannier:ID"},
	} {
		got, err := parseMount(strings.Fields(c.args))
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want an error with %q", c.args, err, c.err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.args, err)
		case !reflect.DeepEqual(*got, c.want):
			t.Errorf("%s:\n%+v, want\n%+v", c.args, *got, c.want)
		}
	}
}

func TestUmountHelperArguments(t *testing.T) {
	got, err := parseUmount([]string{"/data/", "-flrnv", "-t", "pannier"})
	if err != nil || got.target != "/data" || !got.lazy || !reflect.DeepEqual(got.flags, []string{"-f", "-l", "-r"}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestMountWorkload checks that different paths have different workloads, whose ids are valid.
func TestMountWorkload(t *testing.T) {
	for path, want := range map[string]string{
		"/data":                        "mount.data.a",
		"/srv/my data":                 "mount.srv-my_x20data.a",
		"/srv/my-data":                 "mount.srv-my_x2ddata.a",
		"/srv/my_x2ddata":              "mount.srv-my_x5fx2ddata.a",
		"/.hidden":                     "mount._x2ehidden.a",
		"/mnt/ä":                       "mount.mnt-_xc3_xa4.a",
		"/" + strings.Repeat("x", 99):  "mount." + strings.Repeat("x", 99) + ".a",
		"/" + strings.Repeat("x", 200): "mount." + strings.Repeat("x", 105) + ".",
	} {
		if got := mountWorkload(path, "a"); !strings.HasPrefix(got, want) || len(got) > 128 ||
			len(want) < 108 && got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
