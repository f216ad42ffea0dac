package sidekeeper

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// established is a socket's state in the kernel's table (proc_pid_net(5)).
const established = "01"

// errNoSocket: the table has no such socket, or nobody has accepted the connection yet.
var errNoSocket = errors.New("the other end has not accepted the connection")

// listenerOwner returns the user at the other end of a connection to this machine.
func listenerOwner(ctx context.Context, connection net.Conn) (int, error) {
	if socket, isUnix := connection.(*net.UnixConn); isUnix {
		return peerUser(socket)
	}
	ours, isTCP := connection.LocalAddr().(*net.TCPAddr)
	theirs, isPeer := connection.RemoteAddr().(*net.TCPAddr)
	if !isTCP || !isPeer {
		return 0, errOwnerUnknown
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	for {
		owner, err := socketOwner(theirs, ours)
		if !errors.Is(err, errNoSocket) {
			return owner, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(acceptInterval):
		}
	}
}

// peerUser returns the user whose process listens on a socket.
func peerUser(socket *net.UnixConn) (int, error) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var credentials *unix.Ucred
	var failed error
	err = raw.Control(func(descriptor uintptr) {
		credentials, failed = unix.GetsockoptUcred(int(descriptor), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	return int(credentials.Uid), nil
}

// socketOwner returns the owner of the established socket with this address of its own, connected to ours.
//
// A socket that its process has not accepted, or has closed, has no inode, and the kernel may call it one of root.
func socketOwner(theirs, ours *net.TCPAddr) (int, error) {
	for name, form := range map[string]func(*net.TCPAddr) string{"tcp": tableAddress, "tcp6": mappedTableAddress} {
		file, err := os.Open("/proc/self/net/" + name)
		if err != nil {
			if name == "tcp6" {
				continue // the kernel has no IPv6
			}
			return 0, errors.Join(errOwnerUnknown, err)
		}
		rows := bufio.NewScanner(file)
		local, remote := form(theirs), form(ours)
		for rows.Scan() {
			// sl local_address rem_address st queues timer retransmits uid timeout inode
			fields := strings.Fields(rows.Text())
			if len(fields) < 10 || fields[1] != local || fields[2] != remote || fields[3] != established || fields[9] == "0" {
				continue
			}
			_ = file.Close()
			owner, err := strconv.Atoi(fields[7])
			if err != nil {
				return 0, fmt.Errorf("the kernel's table of sockets: %w", err)
			}
			return owner, nil
		}
		_ = file.Close()
		if err := rows.Err(); err != nil {
			return 0, err
		}
	}
	return 0, errNoSocket
}

// tableAddress writes an IPv4 address as the kernel's table has it.
func tableAddress(address *net.TCPAddr) string {
	number := uint32(0)
	if ip := address.IP.To4(); ip != nil {
		number = binary.NativeEndian.Uint32(ip)
	}
	return fmt.Sprintf("%08X:%04X", number, address.Port)
}

// mappedTableAddress writes the same for a socket that speaks IPv4 through IPv6.
func mappedTableAddress(address *net.TCPAddr) string {
	mapped := binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff})
	return fmt.Sprintf("%016X%08X%s", 0, mapped, tableAddress(address))
}
