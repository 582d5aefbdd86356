package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
)

// nameServer answers A and PTR questions over UDP. It has no other record types, and answers NXDOMAIN for unknown
// names.
type nameServer struct {
	conn *net.UDPConn
	work sync.WaitGroup

	mu     sync.Mutex
	silent bool                    // answers nothing
	addrs  map[string][]netip.Addr // by lower-case name without the final dot
	ptrs   map[string]string       // by name in in-addr.arpa
}

// maxAnswer is the size in bytes that every client accepts (RFC 1035, 4.2.1): about 28 addresses of one name.
const maxAnswer = 512

const ttl = 1 // seconds

// serveNames starts a name server in the network namespace of the calling thread.
func serveNames(addr netip.Addr) (*nameServer, error) {
	conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 53)))
	if err != nil {
		return nil, fmt.Errorf("lab: name server: %w", err)
	}
	s := &nameServer{conn: conn, addrs: map[string][]netip.Addr{}, ptrs: map[string]string{}}
	s.work.Go(s.serve)
	return s, nil
}

func (s *nameServer) add(name string, addr netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := canonical(name)
	if !slices.Contains(s.addrs[key], addr) {
		s.addrs[key] = append(s.addrs[key], addr)
	}
}

func (s *nameServer) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.addrs, canonical(name))
}

func (s *nameServer) mute(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
}

func (s *nameServer) muted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent
}

func (s *nameServer) reverse(addr netip.Addr, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := addr.As4()
	s.ptrs[fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", b[3], b[2], b[1], b[0])] = canonical(name) + "."
}

func (s *nameServer) close() {
	_ = s.conn.Close()
	s.work.Wait()
}

func (s *nameServer) serve() {
	buf := make([]byte, 4096)
	for {
		n, client, err := s.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || s.muted() {
			continue
		}
		if answer, err := s.answer(buf[:n]); err == nil {
			_, _ = s.conn.WriteToUDPAddrPort(answer, client)
		}
	}
}

func (s *nameServer) answer(query []byte) ([]byte, error) {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := p.Question()
	if err != nil {
		return nil, err
	}
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true,
			RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{question},
	}
	reply.Answers, reply.RCode = s.records(question)
	packed, err := reply.Pack()
	if err == nil && len(packed) > maxAnswer {
		reply.Truncated, reply.Answers = true, nil
		packed, err = reply.Pack()
	}
	return packed, err
}

func (s *nameServer) records(q dnsmessage.Question) ([]dnsmessage.Resource, dnsmessage.RCode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: ttl}
	key := canonical(q.Name.String())
	if ptr, ok := s.ptrs[key]; ok {
		name, err := dnsmessage.NewName(ptr)
		if err != nil {
			return nil, dnsmessage.RCodeServerFailure
		}
		if q.Type != dnsmessage.TypePTR {
			return nil, dnsmessage.RCodeSuccess
		}
		return []dnsmessage.Resource{{Header: head, Body: &dnsmessage.PTRResource{PTR: name}}}, dnsmessage.RCodeSuccess
	}
	addrs, ok := s.addrs[key]
	if !ok {
		return nil, dnsmessage.RCodeNameError
	}
	if q.Type != dnsmessage.TypeA {
		return nil, dnsmessage.RCodeSuccess
	}
	var answers []dnsmessage.Resource
	for _, i := range rand.Perm(len(addrs)) {
		answers = append(answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: addrs[i].As4()}})
	}
	return answers, dnsmessage.RCodeSuccess
}

func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
