"""The names of personas, by region."""

from collections.abc import Iterator, Mapping


def _read(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each region with its names. A region begins at the beginning of a line."""
    for entry in text.replace("\n  ", " ").splitlines():
        region, _, names = entry.partition(": ")
        yield region, tuple(names.split())


GIVEN_NAMES: Mapping[str, tuple[str, ...]] = dict(
    _read(
        """\
andes: Alejandra Carlos Daniela Diego Gabriela Iván Julio Lucía Mateo Nayra Paola Rosa Tomás Wayra
arab: Ahmad Amal Bilal Dina Farah Hassan Huda Karim Layla Mariam Nadia Omar Rania Salma Tariq Yusuf
balkan: Ana Bojan Dragan Elena Goran Ivana Jelena Luka Marija Milan Nikola Petra Sanja Vesna Zoran
baltic: Aiste Andris Eglė Ieva Jānis Kadri Kristjan Laima Līga Mindaugas Rasa Siim Tomas Vytautas
brazil: Ana Bruno Caio Camila Eduardo Fernanda João Juliana Larissa Luiz Mariana Paulo Rafael Thaís
britain: Alice Callum Charlotte Daniel Emily Gareth Hannah Isla James Megan Oliver Owen Rhys Sophie
caucasus: Aram Ana Davit Elene Giorgi Gohar Leyla Levan Lilit Mariam Nino Rashad Tigran Vugar
central_asia: Aigerim Aziz Bakhyt Dilnoza Erlan Gulnara Jamshid Madina Nurlan Rustam Saule Timur Zarina
china: Bo Chen Fang Hao Jing Jun Lan Lei Li Ming Na Ping Qian Tao Wei Xin Yan Yu Zhen
east_africa: Abebe Achieng Amani Asha Baraka Faraja Hiwot Juma Kamau Neema Njeri Tadesse Wanjiku Zawadi
france: Adèle Antoine Camille Chloé Étienne Guillaume Inès Julien Léa Manon Mathieu Nicolas Océane Théo
germany: Anja Bernd Christian Franziska Hannes Jana Katrin Lukas Moritz Nele Paul Sabine Stefan Ulrike
greece: Alexandros Anna Dimitris Eleni Giorgos Ioanna Katerina Kostas Maria Nikos Sofia Stavros
iberia: Álvaro Beatriz Carmen Duarte Inês Javier Jorge Laia Marta Miguel Núria Rui Sofia Teresa Xabier
india_north: Aarav Ananya Arjun Deepa Gaurav Ishita Kavita Manish Neha Priya Rahul Rohan Sunita Vikram
india_south: Arun Divya Ganesh Harini Karthik Lakshmi Meena Naveen Padma Ramesh Revathi Suresh Vidya
indonesia: Agus Ayu Bambang Budi Citra Dewi Eko Fitri Indah Putri Rizki Sari Siti Wahyu Yanti
iran: Ali Arash Bahar Darius Elham Farhad Golnaz Kaveh Laleh Maryam Navid Parisa Reza Shirin
israel: Amit Ariel Dana Eitan Gal Hila Itai Maya Noam Noa Omer Roni Shira Tal Yael Yonatan
italy: Alessandro Chiara Elisa Federico Francesca Giulia Lorenzo Luca Marco Martina Paolo Sara Valentina
japan: Akira Aoi Daichi Emi Haruto Hina Kaito Kenji Mei Naoki Ren Sakura Sora Takumi Yui Yuto
korea: Daeun Eunji Hana Jihoon Jiwoo Junseo Minji Minjun Seojun Sora Soyeon Sunghoon Yejin Yuna
mexico: Abril Arturo Diego Fernanda Guadalupe Héctor Itzel Jimena Jorge Ximena Luis Miguel Renata Sergio
netherlands: Anouk Bas Daan Emma Femke Jeroen Joost Lotte Maarten Niels Pieter Sanne Sophie Thijs
nigeria: Adaeze Amara Babajide Chidi Chioma Emeka Folake Ibrahim Kelechi Ngozi Obinna Temitope Tunde Yetunde
nordic: Aino Anders Astrid Bjørn Eero Freja Guðrún Ingrid Jón Kaisa Lars Linnea Magnus Mikko Oda Sigrid
north_america: Aaliyah Brandon Carter Dakota Emma Ethan Grace Jordan Kayla Logan Madison Noah Tyler Zoe
pacific: Alofa Aroha Hemi Kahu Kalani Leilani Losa Manaia Mele Sione Tama Tevita Wiremu
pakistan: Ayesha Bilal Fatima Hamza Hira Imran Kamran Mahnoor Nida Sana Shahid Usman Zainab Zeeshan
philippines: Angelica Bayani Carlo Grace Jasmine Jericho Joy Lito Maricel Paolo Ramil Rosario Tala
poland: Agnieszka Andrzej Bartek Ewa Jakub Joanna Kasia Krzysztof Magda Michał Piotr Tomasz Zofia
slavic_east: Alexei Anastasia Bohdan Daria Dmytro Iryna Kateryna Maxim Natalia Oksana Olena Pavel Sergei Taras
south_africa: Anele Bongani Johan Lerato Lindiwe Mandla Nomsa Pieter Precious Sipho Thabo Thandi Zanele
southern_cone: Agustín Camila Emilia Facundo Florencia Joaquín Lautaro Martina Nicolás Sofía Valentín Victoria
thailand: Anong Chai Kanya Malee Nattapong Niran Pim Ploy Somchai Somsak Suda Thanawat Wanida
turkey: Ahmet Ayşe Burak Ceren Deniz Elif Emre Fatma Hakan Melis Mustafa Selin Tolga Zeynep
vietnam: An Anh Bình Dung Hà Hải Hoa Hùng Lan Linh Mai Minh Nam Ngọc Phúc Thảo Trang Tuấn
west_africa: Abena Adjoa Akosua Aminata Awa Fatou Ibrahima Kofi Kwame Mamadou Moussa Ousmane Yaw"""
    )
)
"""Given names."""

FAMILY_NAMES: Mapping[str, tuple[str, ...]] = dict(
    _read(
        """\
andes: Castillo Choque Flores Huamán Mamani Paredes Quispe Rojas Salazar Torres Vargas Yupanqui
arab: Aziz Darwish Fares Haddad Hamdan Khalil Khoury Mansour Nasser Rahman Saleh Shaheen Younes Zaki
balkan: Babić Dimitrov Horvat Ilić Ivanov Jovanović Knežević Kovač Marković Novak Petrović Popescu
baltic: Bērziņš Jankauskas Kalniņš Kask Kazlauskas Ozoliņš Petrauskas Saar Tamm Urbonas Vaitkus
brazil: Almeida Barbosa Carvalho Costa Ferreira Lima Moreira Nascimento Oliveira Ribeiro Santos Souza
britain: Baker Campbell Davies Evans Fraser Griffiths Hughes Murray Patel Robertson Taylor Walker Wright
caucasus: Aliyev Beridze Grigoryan Hakobyan Hasanov Kapanadze Lomidze Mammadov Petrosyan Sargsyan
central_asia: Abdullaev Akhmetov Bekov Ibragimov Karimov Nazarov Omarov Rakhimov Sadykov Tulegenov Yusupov
china: Cao Chen Deng Gao Guo Huang Li Lin Liu Ma Sun Wang Wu Xu Yang Zhang Zhao Zhou Zhu
east_africa: Abdi Bekele Gebre Kariuki Kimani Mbeki Mwangi Ochieng Odhiambo Otieno Tesfaye Wambui
france: Bernard Chevalier Dubois Fontaine Garnier Lambert Lefèvre Mercier Moreau Rousseau Roux Vidal
germany: Bauer Becker Braun Fischer Hartmann Hoffmann Keller Krüger Neumann Richter Schulz Vogel Weber
greece: Angelopoulos Christou Dimitriou Georgiou Ioannidis Katsaros Nikolaou Papadopoulos Pappas Vlachos
iberia: Alonso Carvalho Etxeberria Fernandes Ferrer García Lopes Martínez Navarro Pereira Puig Sousa
india_north: Agarwal Banerjee Bhatt Chaudhary Gupta Joshi Kapoor Mehta Mishra Sharma Singh Verma
india_south: Iyer Krishnan Menon Murthy Nair Pillai Raman Rao Reddy Shetty Subramaniam Venkatesh
indonesia: Gunawan Hartono Kusuma Lestari Nugroho Pratama Santoso Setiawan Siregar Suharto Wibowo Wijaya
iran: Ahmadi Azizi Farahani Ghorbani Hosseini Jafari Karimi Moradi Mousavi Rahimi Sadeghi Tehrani
israel: Avraham Ben-David Biton Cohen Dahan Friedman Katz Levi Malka Mizrahi Peretz Shapira
italy: Barbieri Bianchi Colombo Conti Costa Esposito Ferrari Gallo Greco Marino Ricci Romano Russo
japan: Abe Fujita Hayashi Ito Kato Kobayashi Mori Nakamura Saito Sasaki Sato Suzuki Tanaka Yamamoto
korea: Ahn Bae Cho Choi Han Jang Jung Kang Kim Kwon Lee Lim Park Seo Shin Yoon
mexico: Aguilar Castro Cruz Domínguez Guzmán Hernández Jiménez Mendoza Ortega Ramírez Reyes Solís
netherlands: Bakker Bos Brouwer Dekker Hendriks Jansen Kok Mulder Peters Smit Visser Vermeer Willems
nigeria: Abubakar Adebayo Adeyemi Balogun Bello Eze Nwosu Obi Ogunleye Okafor Okonkwo Suleiman
nordic: Andersen Berg Eriksson Hansen Jónsdóttir Korhonen Lindqvist Mäkinen Nielsen Olsen Virtanen
north_america: Begay Bennett Brooks Coleman Foster Jenkins Miller Nguyen Parker Reed Tremblay Washington
pacific: Fonoti Ioane Kahale Latu Ngata Paewai Parata Taufa Te-Rangi Tuilagi Vea Walker
pakistan: Abbasi Ahmed Akhtar Butt Chaudhry Hussain Iqbal Khan Malik Qureshi Rizvi Sheikh Siddiqui
philippines: Aquino Bautista Dela-Cruz Dizon Garcia Lim Magbanua Mendoza Pangilinan Reyes Santos Villanueva
poland: Dąbrowski Jankowska Kamińska Kowalski Lewandowski Mazur Nowak Pawlak Wiśniewska Wójcik Zając
slavic_east: Bondarenko Ivanova Kovalenko Kuznetsov Lysenko Melnyk Morozova Petrenko Shevchenko Smirnov
south_africa: Botha Dlamini Khumalo Mokoena Molefe Naidoo Ndlovu Nkosi Pillay Sithole Van-Wyk Zulu
southern_cone: Acosta Álvarez Benítez Cabrera Figueroa Gómez Ledesma Muñoz Pereyra Silva Suárez Vera
thailand: Boonmee Chaiyasit Intarat Kaewmanee Phongphan Rattana Saetang Srisai Suwannarat Wongsa
turkey: Aksoy Arslan Aydın Çelik Demir Doğan Kaya Koç Öztürk Şahin Yıldız Yılmaz
vietnam: Bùi Đặng Đỗ Hồ Hoàng Lê Lý Ngô Nguyễn Phạm Phan Trần Võ Vũ
west_africa: Asante Ba Boateng Coulibaly Diallo Diop Keita Mensah Ndiaye Owusu Sow Traoré"""
    )
)
"""Family names."""

REGIONS: tuple[str, ...] = tuple(GIVEN_NAMES)
