package api

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// UnreachableError is returned if no connection to the agent could be made. No call was sent, so it can be repeated.
type UnreachableError struct {
	// Address is the address that was passed to New.
	Address string
	Err     error
}

// NotUpHeader is in the answer of an agent that does not come up: the reason.
const NotUpHeader = "X-Pannier-Not-Up"

// notUp is why an agent does not come up.
type notUp string

func (e notUp) Error() string { return string(e) }

// Error names the address, the cause and a remedy.
func (e *UnreachableError) Error() string {
	path, isUnix := strings.CutPrefix(e.Address, "unix://")
	verification := (*tls.CertificateVerificationError)(nil)
	why := notUp("")
	switch {
	case errors.As(e.Err, &why):
		return why.Error()
	case isUnix && errors.Is(e.Err, fs.ErrNotExist):
		return fmt.Sprintf("no agent at %s: there is no such socket; %s, or tell where it is with -address or PANNIER_ADDR",
			e.Address, howToStart(" (pannier agent, or pannier agent -dev to try it out)"))
	case isUnix && errors.Is(e.Err, syscall.ECONNREFUSED):
		return fmt.Sprintf("no agent at %s: the socket is there, but nothing listens on it; %s",
			e.Address, howToStart(" (pannier agent)"))
	case errors.Is(e.Err, fs.ErrPermission):
		return fmt.Sprintf("no permission to call the agent at %s: %s may; run the command as root", e.Address, whoMay(path))
	case errors.As(e.Err, &verification):
		return fmt.Sprintf(
			"the agent at %s is not believed: %v; set PANNIER_CACERT to the certificate of the authority that signed its own, "+
				"and PANNIER_TLS_SERVER_NAME where that has other names than the address (pannier tls cert inspect shows them)",
			e.Address, verification.Err)
	default:
		return fmt.Sprintf(
			"cannot reach the agent at %s: %v; is it running (pannier agent), and is the address right (-address or PANNIER_ADDR)?",
			e.Address, e.Err)
	}
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// howToStart names the command that starts the agent: systemd's if it has a unit of it, otherwise what is given.
func howToStart(otherwise string) string {
	if _, err := os.Stat("/run/systemd/system"); err == nil { // sd_booted(3)
		for _, dir := range []string{"/etc", "/usr/lib", "/lib"} {
			if _, err := os.Stat(dir + "/systemd/system/pannier.service"); err == nil {
				return "run: systemctl start pannier"
			}
		}
	}
	return "start the agent" + otherwise
}

// whoMay describes the users that the owner and the mode of a socket allow to use it.
func whoMay(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "root and the agent's socket_group"
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Gid == 0 {
		return "only root (the agent has no socket_group)"
	}
	group := strconv.Itoa(int(stat.Gid))
	if g, err := user.LookupGroupId(group); err == nil {
		group = g.Name
	}
	return fmt.Sprintf("root and the group %q", group)
}
