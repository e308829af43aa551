package owner

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// command is what may be printed for an operator to copy: no character of it means something to a shell or a terminal.
var command = regexp.MustCompile(`^(kill|systemctl stop|docker stop|podman stop) [a-zA-Z0-9_.@:\\][a-zA-Z0-9_.@:\\-]*$`)

// FuzzOf names control groups, whose names users choose below their own. What is printed for an operator to copy is one
// command.
func FuzzOf(f *testing.F) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, group := range []string{
		"/system.slice/docker-" + id + ".scope", "/machine.slice/libpod-" + id + ".scope", "/system.slice/db.service",
		"/system.slice/system-getty.slice/getty@tty1.service", `/system.slice/dev-disk-by\x2did.service`,
		"/user.slice/user-1000.slice/user@1000.service/app.slice/$(reboot).service",
		"/user.slice/user-1000.slice/user@1000.service/app.slice/ssh.service", "/a b;reboot.service", "/\x1b[2J.service",
		"/--help.service",
	} {
		f.Add(group)
	}
	f.Fuzz(func(t *testing.T, group string) {
		o := Of(1<<30, group)
		if o.Stop != "" && !command.MatchString(o.Stop) {
			t.Errorf("the command is %q", o.Stop)
		}
		if strings.HasPrefix(group, "/user.slice/user-1000.slice/user@1000.service/") && strings.HasPrefix(o.Name, "unit") {
			t.Errorf("a user's own control group is taken for %s", o.Name)
		}
		if strings.ContainsFunc(o.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("the name is %q", o.Name)
		}
	})
}

// FuzzContainerNames reads any bytes as what Docker and Podman say about a container.
func FuzzContainerNames(f *testing.F) {
	id := strings.Repeat("0123456789abcdef", 4)
	f.Add([]byte(`{"ID":"` + id + `","Name":"/web"}`))
	f.Add([]byte(`{"ID":"` + id + `","Name":"/web; reboot"}`))
	f.Add([]byte(`[{"id":"` + id + `","names":["db"]}]`))
	f.Add([]byte(`[{"id":"` + id + `","names":["$(reboot)"]}]`))
	path := filepath.Join(f.TempDir(), "answer")
	f.Fuzz(func(t *testing.T, answer []byte) {
		if err := os.WriteFile(path, answer, 0o600); err != nil {
			t.Fatal(err)
		}
		for engine, name := range map[string]string{"docker": dockerName(path, id), "podman": podmanName(path, id)} {
			if name != "" && !command.MatchString(named(name, engine, id).Stop) {
				t.Errorf("%s: the command is %q", engine, named(name, engine, id).Stop)
			}
		}
	})
}
