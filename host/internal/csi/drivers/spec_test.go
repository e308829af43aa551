package drivers

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestDefaults(t *testing.T) {
	got := Spec{ID: "a"}.withDefaults("/data")
	if got.Type != TypeMonolith || got.Endpoint != "unix:///data/csi/a/csi.sock" || got.HealthTimeout != 30*time.Second ||
		got.MountDir != "" {
		t.Errorf("got %+v", got)
	}
	got = Spec{ID: "a", Endpoint: "/run/x.sock", MountDir: "/m"}.withDefaults("/data")
	if got.Endpoint != "unix:///run/x.sock" || got.MountDir != "/m" || got.StagePublishBaseDir != "/local/csi" {
		t.Errorf("got %+v", got)
	}
	got = Spec{ID: "a", StagePublishBaseDir: "/s"}.withDefaults("/data")
	if got.MountDir != "/csi" || got.StagePublishBaseDir != "/s" {
		t.Errorf("got %+v", got)
	}
}

func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		name, want string // want "": valid
		change     func(*Spec)
	}{
		{"as it is", "", func(*Spec) {}},
		{"longest id", "", func(s *Spec) { s.ID = strings.Repeat("a", 128) }},
		{"every kind of character", "", func(s *Spec) { s.ID = "aZ0-_." }},
		{"no id", "the id is missing", func(s *Spec) { s.ID = "" }},
		{"long id", "longer than 128", func(s *Spec) { s.ID = strings.Repeat("a", 129) }},
		{"id with a slash", "has the character", func(s *Spec) { s.ID = "a/b" }},
		{"id out of the folder", `must not be ".."`, func(s *Spec) { s.ID = ".." }},
		{"id of the folder", `must not be "."`, func(s *Spec) { s.ID = "." }},
		{"id with a newline", "has the character", func(s *Spec) { s.ID = "a\n" }},
		{"unknown type", `type "both"`, func(s *Spec) { s.Type = "both" }},
		{"relative socket", "clean absolute path", func(s *Spec) { s.Endpoint = "unix://csi.sock" }},
		{"unclean socket", "clean absolute path", func(s *Spec) { s.Endpoint = "unix:///run/../etc/x" }},
		{"network", "only unix sockets", func(s *Spec) { s.Endpoint = "tcp://127.0.0.1:1" }},
		{"longest socket", "", func(s *Spec) { s.Endpoint = "unix:///" + strings.Repeat("a", 106) }},
		{
			"long socket", "108 bytes, the kernel takes 107",
			func(s *Spec) { s.Endpoint = "unix:///" + strings.Repeat("a", 107) },
		},
		{"relative mount_dir", "mount_dir", func(s *Spec) { s.MountDir = "csi" }},
		{"relative base", "stage_publish_base_dir", func(s *Spec) { s.StagePublishBaseDir = "csi/" }},
		{"negative timeout", "health_timeout", func(s *Spec) { s.HealthTimeout = -1 }},
		{"relative command", "not an absolute path", func(s *Spec) { s.Command = []string{"driver"} }},
		{"empty command", "not an absolute path", func(s *Spec) { s.Command = []string{""} }},
		{"unknown user", "not known on this machine", func(s *Spec) { s.Command, s.User = []string{"/d"}, "no-such-user" }},
		{"mount flags", "", func(s *Spec) { s.AllowedMountFlags = []string{"errors=remount-ro", "uid"} }},
		{"two mount flags in one", "not one mount flag", func(s *Spec) { s.AllowedMountFlags = []string{"suid,dev"} }},
		{"ephemeral volumes", "", func(s *Spec) { s.EphemeralVolumes = &EphemeralVolumes{} }},
		{
			"a secret in the spec", "ephemeral_volumes: secrets: key is not file://",
			func(s *Spec) { s.EphemeralVolumes = &EphemeralVolumes{Secrets: map[string]string{"key": "hunter2"}} },
		},
		{"user by number", "", func(s *Spec) { s.Command, s.User = []string{"/d"}, "0" }},
		{"user without a command", "without a command", func(s *Spec) { s.User = "root" }},
		{"overlap", "", func(s *Spec) { s.Command, s.Overlap = []string{"/d"}, true }},
		{"overlap without a command", "without a command", func(s *Spec) { s.Overlap = true }},
		{
			"long socket of a process", "108 bytes, the kernel takes 107",
			func(s *Spec) {
				s.Command, s.Overlap, s.Endpoint = []string{"/d"}, true, "unix:///"+strings.Repeat("a", 105)
			},
		},
		{
			"registered with a command", "has no command",
			func(s *Spec) { s.Command, s.Source = []string{"/d"}, SourceRegistered },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := Spec{ID: "a", Endpoint: "/run/a.sock", Source: SourceConfig}
			tt.change(&s)
			s = s.withDefaults("/data")
			err := s.Validate()
			if tt.want == "" && err != nil {
				t.Fatal(err)
			}
			if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Fatalf("got %v, want %q in it", err, tt.want)
			}
		})
	}
}

func TestTranslate(t *testing.T) {
	container := Driver{Spec: Spec{ID: "d", MountDir: "/csi", StagePublishBaseDir: "/local/csi"}, dir: "/data/csi/d"}
	for _, tt := range []struct{ path, want string }{
		{"/data/csi/d/csi.sock", "/csi/csi.sock"},
		{"/data/csi/d", "/csi"},
		{"/data/csi/d/", "/csi"},
		{"/data/csi/d/staging/default/v/rw", "/local/csi/staging/default/v/rw"},
		{"/data/csi/d/staging", "/local/csi/staging"},
		{"/data/csi/d/per-workload/w/default/v/rw/0", "/local/csi/per-workload/w/default/v/rw/0"},
		{"/data/csi/d/stagings/x", "/csi/stagings/x"},
		{"/data/csi/d/other/staging", "/csi/other/staging"},
		{"/data/csi/d2/staging/x", "/data/csi/d2/staging/x"}, // another driver's
		{"/data/csi/d/../d2/staging/x", "/data/csi/d/../d2/staging/x"},
		{"/dev/loop0", "/dev/loop0"},
		{"", ""},
	} {
		if got := container.Translate(tt.path); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.path, got, tt.want)
		}
		if got := (Driver{dir: container.dir}).Translate(tt.path); got != tt.path {
			t.Errorf("%s: a driver on the host gets %s", tt.path, got)
		}
	}
}

func TestOtherUserNeedsItsOwnFolder(t *testing.T) {
	h := newHost(t, shortDir(t))
	s := supervised("a")
	s.User = "nobody"
	if err := h.Open(t.Context(), []Spec{s}); err == nil || !strings.Contains(err.Error(), "set an endpoint in a folder") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat(dir(h.dataDir, "a")); err == nil {
		t.Error("the driver's folder was made")
	}
}
