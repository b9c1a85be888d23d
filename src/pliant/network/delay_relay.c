// delay_relay QUEUE MICROSECONDS: takes packets from an NFQUEUE and lets each go on after a fixed delay.
//
// Packets leave in the order in which they came, since all wait equally long. The kernel keeps them; only their
// numbers pass through here. Raw netlink, so that no library is needed.
#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_queue.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_WAITING (1 << 20)  // a power of two

static struct { uint32_t id; int64_t due_ns; } waiting[MAX_WAITING];
static uint32_t head, tail;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

typedef struct {
    struct nlmsghdr header;
    struct nfgenmsg family;
    uint8_t attributes[64];
} message_t;

static message_t message_for(uint16_t queue, uint16_t type) {
    message_t m;
    memset(&m, 0, sizeof m);
    m.header.nlmsg_type = (uint16_t)(NFNL_SUBSYS_QUEUE << 8 | type);
    m.header.nlmsg_flags = NLM_F_REQUEST;
    m.header.nlmsg_len = NLMSG_LENGTH(sizeof m.family);
    m.family.version = NFNETLINK_V0;
    m.family.res_id = htons(queue);
    return m;
}

static void add(message_t *m, uint16_t type, const void *value, uint16_t length) {
    struct nlattr *attribute = (struct nlattr *)((uint8_t *)m + NLMSG_ALIGN(m->header.nlmsg_len));
    attribute->nla_type = type;
    attribute->nla_len = (uint16_t)(NLA_HDRLEN + length);
    memcpy((uint8_t *)attribute + NLA_HDRLEN, value, length);
    m->header.nlmsg_len = (uint32_t)(NLMSG_ALIGN(m->header.nlmsg_len) + NLA_ALIGN(attribute->nla_len));
}

static void tell(int fd, const message_t *m) {
    if (send(fd, m, m->header.nlmsg_len, 0) < 0) fail("send");
}

// Configuration is confirmed; nothing else arrives meanwhile, since no rule sends packets here yet.
static void ask(int fd, message_t *m) {
    uint8_t answer[1024];
    const struct nlmsghdr *header = (const struct nlmsghdr *)answer;
    m->header.nlmsg_flags |= NLM_F_ACK;
    tell(fd, m);
    ssize_t got = recv(fd, answer, sizeof answer, 0);
    if (got < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)) || header->nlmsg_type != NLMSG_ERROR) {
        errno = EPROTO;
        fail("queue");
    }
    errno = -((const struct nlmsgerr *)NLMSG_DATA(header))->error;
    if (errno) fail("queue");
}

static void configure(int fd, uint16_t queue) {
    struct nfqnl_msg_config_cmd bind_queue = {NFQNL_CFG_CMD_BIND, 0, htons(AF_INET)};
    struct nfqnl_msg_config_params only_numbers = {0, NFQNL_COPY_META};
    uint32_t length = htonl(MAX_WAITING / 2), whole_segments = htonl(NFQA_CFG_F_GSO);
    message_t m = message_for(queue, NFQNL_MSG_CONFIG);
    add(&m, NFQA_CFG_CMD, &bind_queue, sizeof bind_queue);
    ask(fd, &m);
    m = message_for(queue, NFQNL_MSG_CONFIG);
    add(&m, NFQA_CFG_PARAMS, &only_numbers, sizeof only_numbers);
    add(&m, NFQA_CFG_QUEUE_MAXLEN, &length, sizeof length);
    add(&m, NFQA_CFG_FLAGS, &whole_segments, sizeof whole_segments);
    add(&m, NFQA_CFG_MASK, &whole_segments, sizeof whole_segments);
    ask(fd, &m);
}

static void note_packet(const struct nlmsghdr *header, int64_t delay_ns) {
    const uint8_t *at = (const uint8_t *)NLMSG_DATA(header) + NLMSG_ALIGN(sizeof(struct nfgenmsg));
    const uint8_t *end = (const uint8_t *)header + header->nlmsg_len;
    while (at + NLA_HDRLEN <= end) {
        const struct nlattr *attribute = (const struct nlattr *)at;
        if (attribute->nla_len < NLA_HDRLEN) return;
        if ((attribute->nla_type & NLA_TYPE_MASK) == NFQA_PACKET_HDR) {
            const struct nfqnl_msg_packet_hdr *packet = (const void *)(at + NLA_HDRLEN);
            waiting[tail % MAX_WAITING].id = packet->packet_id;  // in network order, as it goes back
            waiting[tail++ % MAX_WAITING].due_ns = now_ns() + delay_ns;
            return;
        }
        at += NLA_ALIGN(attribute->nla_len);
    }
}

static void release_due(int fd, uint16_t queue) {
    struct nfqnl_msg_verdict_hdr verdict = {htonl(NF_ACCEPT), 0};
    int64_t now = now_ns();
    int any = 0;
    for (; head != tail && waiting[head % MAX_WAITING].due_ns <= now; head++, any = 1)
        verdict.id = waiting[head % MAX_WAITING].id;
    // A batch verdict covers every packet up to its number.
    if (any) {
        message_t m = message_for(queue, NFQNL_MSG_VERDICT_BATCH);
        add(&m, NFQA_VERDICT_HDR, &verdict, sizeof verdict);
        tell(fd, &m);
    }
}

static void set_timer(int timer) {
    struct itimerspec when = {{0, 0}, {0, 0}};
    if (head != tail) {
        int64_t due = waiting[head % MAX_WAITING].due_ns;
        when.it_value.tv_sec = due / 1000000000;
        when.it_value.tv_nsec = due % 1000000000;
    }
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
}

int main(int argc, char **argv) {
    static uint8_t buffer[1 << 18];
    if (argc != 3) {
        fprintf(stderr, "usage: delay_relay QUEUE MICROSECONDS\n");
        return 2;
    }
    uint16_t queue = (uint16_t)atoi(argv[1]);
    int64_t delay_ns = atoll(argv[2]) * 1000;
    int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER), size = 1 << 24;
    if (fd < 0) fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    int no = 1;
    setsockopt(fd, SOL_NETLINK, NETLINK_NO_ENOBUFS, &no, sizeof no);
    configure(fd, queue);
    int timer = timerfd_create(CLOCK_MONOTONIC, 0);
    if (timer < 0) fail("timerfd");
    printf("ready\n");
    fflush(stdout);
    struct pollfd wait_for[2] = {{fd, POLLIN, 0}, {timer, POLLIN, 0}};
    for (;;) {
        if (poll(wait_for, 2, -1) < 0 && errno != EINTR) fail("poll");
        if (wait_for[1].revents & POLLIN) {
            uint64_t ticks;
            if (read(timer, &ticks, sizeof ticks) < 0) fail("timer");
        }
        if (wait_for[0].revents & POLLIN) {
            ssize_t got = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
            if (got < 0 && errno != EAGAIN && errno != ENOBUFS) fail("receive");
            size_t left = got > 0 ? (size_t)got : 0;
            for (struct nlmsghdr *h = (struct nlmsghdr *)buffer; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left))
                if (h->nlmsg_type == (NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET)) note_packet(h, delay_ns);
        }
        release_due(fd, queue);
        set_timer(timer);
    }
}
